"""The paper of each family."""

from typing import Any

# by the first part of a model type
PAPERS = {
    "sandwich": {
        "title": "Improving Transformer Models by Reordering their Sublayers",
        "arxiv": "1911.03864",
        "authors": "Press, Ofir and Smith, Noah A. and Levy, Omer",
        "year": 2020,
    },
    "par": {
        "title": "Pay Attention when Required",
        "arxiv": "2009.04534",
        "authors": "Mandava, Swetha and Migacz, Szymon and Fit Florea, Alex",
        "year": 2020,
    },
    "macaron": {
        "title": "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View",
        "arxiv": "1906.02762",
        "authors": "Lu, Yiping and Li, Zhuohan and He, Di and Sun, Zhiqing and Dong, Bin and Qin, Tao and Wang, Liwei "
        "and Liu, Tie-Yan",
        "year": 2019,
    },
    "iot": {
        "title": "IOT: Instance-wise Layer Reordering for Transformer Structures",
        "arxiv": "2103.03457",
        "authors": "Zhu, Jinhua and Wu, Lijun and Xia, Yingce and Xie, Shufang and Qin, Tao and Zhou, Wengang and Li, "
        "Houqiang and Liu, Tie-Yan",
        "year": 2021,
    },
}


def paper(model_type: str) -> dict[str, Any]:
    """Name the paper of a family."""
    return PAPERS[model_type.split("_")[0]]


def citation(paper: dict[str, Any]) -> str:
    """Write a paper in BibTeX."""
    return (
        f"@article{{{paper['authors'].split(',')[0].lower()}{paper['year']},\n"
        f"  title = {{{paper['title']}}},\n"
        f"  author = {{{paper['authors']}}},\n"
        f"  journal = {{arXiv preprint arXiv:{paper['arxiv']}}},\n"
        f"  year = {{{paper['year']}}},\n"
        "}"
    )
