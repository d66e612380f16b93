"""Which orders a search tries next: at random, or by Optuna's samplers from what was found."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.sublayer_order import compact

NAMES = ("nsga2", "tpe", "random")
# how often an order is changed until it is new and allowed, before it is drawn anew
TRIES = 100


class Places:
    """Orders as numbers, one for each place, where a sublayer or none stands.

    What mixes positions has the lowest numbers, then comes nothing, then what is position-wise. So the distance of two
    numbers is small if a letter is dropped, and larger if it turns into one of another kind, and orders that differ at
    few places are near each other.

    Args:
        letters: that orders consist of.
        number: of places.
    """

    def __init__(self, letters: str, number: int):
        mixers = [letter for letter in letters if not ALPHABET[letter].is_position_wise]
        self.kinds = [*mixers, "", *(letter for letter in letters if letter not in mixers)]
        self.space: dict[str, BaseDistribution] = {
            f"place {place:03}": IntDistribution(0, len(self.kinds) - 1) for place in range(number)
        }

    def choose(self, trial: optuna.Trial) -> str:
        """Let the sampler of a trial choose an order."""
        return self.order([trial.suggest_int(name, 0, len(self.kinds) - 1) for name in self.space])

    def order(self, places: Sequence[int]) -> str:
        """Read an order off its places; it may be empty."""
        letters = "".join(self.kinds[kind] for kind in places)
        return compact(letters) if letters else ""

    def draw(self, draw: random.Random) -> list[int]:
        """Draw an order of any number of sublayers, each as probable as the others."""
        nothing, length = self.kinds.index(""), draw.randint(1, len(self.space))
        filled = draw.sample(range(len(self.space)), length)
        letters = [kind for kind in range(len(self.kinds)) if kind != nothing]
        return [draw.choice(letters) if place in filled else nothing for place in range(len(self.space))]

    def mutate(self, places: Sequence[int], draw: random.Random) -> list[int]:
        """Swap two neighbours, or turn, drop or add a letter."""
        changed = [*places]
        place = draw.randrange(len(places))
        if place + 1 < len(places) and draw.random() < 0.5:
            changed[place : place + 2] = reversed(places[place : place + 2])
        else:
            changed[place] = draw.choice([kind for kind in range(len(self.kinds)) if kind != places[place]])
        return changed


class OrderSampler(BaseSampler):
    """Orders that no other trial has, by one of Optuna's samplers, whose children mutate once where it is NSGA-II.

    What is drawn depends on the seed and the number of the trial, so that processes that share a study do not draw the
    same.

    Args:
        name: one of `NAMES`; "random" draws every order anew.
        places: of the orders.
        allows: says whether an order may be trained.
        seed: of all draws.
        population: orders that NSGA-II keeps, and that are drawn at random before a sampler knows enough.
    """

    def __init__(self, name: str, places: Places, allows: Callable[[str], bool], seed: int, population: int):
        self.name, self.places, self.allows, self.seed = name, places, allows, seed
        self.population = population

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All places are chosen together."""
        return self.places.space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose an order."""
        draw = random.Random(f"{self.seed} {trial.number}")
        found: dict[str, Any] = {}
        if self.name != "random":
            sampler = self._make(draw.getrandbits(32))
            found = sampler.sample_relative(study, trial, search_space)
        places = [found[name] for name in search_space] if found else self.places.draw(draw)
        if found and self.name == "nsga2":
            places = self.places.mutate(places, draw)
        others = [other.params for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        known = {self.places.order([*params.values()]) for params in others if len(params) == len(search_space)}
        tries = 0
        while (order := self.places.order(places)) in known or not self.allows(order):
            tries += 1
            # random draws stay independent of each other
            again = self.name == "random" or tries % TRIES == 0
            places = self.places.draw(draw) if again else self.places.mutate(places, draw)
            if tries == TRIES**2:
                raise ValueError(f"no new order that is allowed was found after {len(known)}; ask for fewer")
        return dict(zip(search_space, places, strict=True))

    def _make(self, seed: int) -> BaseSampler:
        if self.name == "nsga2":
            return NSGAIISampler(population_size=self.population, mutation_prob=0.0, seed=seed)
        return TPESampler(n_startup_trials=self.population, multivariate=True, seed=seed)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never needed, since all places are chosen together."""
        raise NotImplementedError(param_name)
