import pytest
import torch

from orchestra_flwr.federation.messages.base13 import pack, unpack, words_for


@pytest.mark.parametrize("count", [1, 16, 17, 18, 255])
def test_all_numbers_come_back(count, generator):
    numbers = torch.randint(-6, 7, (50, count), generator=generator)
    numbers[0], numbers[1] = 6, -6
    words = pack(numbers.float())
    assert words.dtype == torch.int64 and words.shape == (50, words_for(count))
    assert torch.equal(unpack(words, count), numbers.float())


def test_a_word_is_a_number_to_the_base_13():
    numbers = [*range(-6, 7), 6, -6, 0, 3]
    word = sum((number + 6) * 13**power for power, number in enumerate(numbers))
    assert pack(torch.tensor([numbers])).tolist() == [[word]]
    assert 13**17 < 2**63


def test_whatever_the_words_are_numbers_are_in_range(generator):
    """Nobody but a client that lies sends such words."""
    least, most = -(2**63), 2**63 - 1
    words = torch.randint(least, most, (1000, 15), generator=generator)
    words[0, :2] = torch.tensor([least, most])
    numbers = unpack(words, 255)
    assert numbers.abs().max() == 6 and torch.equal(numbers, numbers.round())
