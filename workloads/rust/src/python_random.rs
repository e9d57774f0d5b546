//! The random numbers of Python's `random`, so that a seeded message is the same in both languages:
//! MT19937 (Matsumoto, Nishimura), seeded by an array of one number.

const N: usize = 624;
const M: usize = 397;

pub(crate) struct Random {
    state: [u32; N],
    at: usize,
}

impl Random {
    /// As `random.Random(seed)` for a seed of 32 bits.
    pub(crate) fn new(seed: u32) -> Self {
        let mut mt = [0; N];
        mt[0] = 19_650_218;
        for i in 1..N {
            mt[i] = spread(mt[i - 1], 1_812_433_253).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..N {
            mt[i] = (mt[i] ^ spread(mt[i - 1], 1_664_525)).wrapping_add(seed);
            i = next(&mut mt, i);
        }
        for _ in 0..N - 1 {
            mt[i] = (mt[i] ^ spread(mt[i - 1], 1_566_083_941)).wrapping_sub(i as u32);
            i = next(&mut mt, i);
        }
        mt[0] = 0x8000_0000;
        Self { state: mt, at: N }
    }

    fn word(&mut self) -> u32 {
        if self.at == N {
            for i in 0..N {
                let bits = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7FFF_FFFF);
                let odd = if bits & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.state[i] = self.state[(i + M) % N] ^ (bits >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    /// As `random.random()`: at least 0, below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        let a = self.word() >> 5;
        let b = self.word() >> 6;
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }
}

/// What both loops of the seeding do with the word before.
fn spread(before: u32, factor: u32) -> u32 {
    (before ^ (before >> 30)).wrapping_mul(factor)
}

fn next(mt: &mut [u32; N], i: usize) -> usize {
    if i + 1 < N {
        return i + 1;
    }
    mt[0] = mt[N - 1];
    1
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_number_is_pythons() {
        assert_eq!(super::Random::new(20).unit(), 0.905_639_676_174_520_7);
    }
}
