//! AES-128 in counter mode with tables (FIPS 197, NIST SP 800-38A): the twin of `pyaes/aes.py`, for
//! measuring and never for secrets.

pub(crate) struct Tables {
    substitute: [u8; 256],
    mixed: [[u32; 256]; 4],
}

impl Tables {
    pub(crate) fn new() -> Self {
        let mut power = [0_u8; 510];
        let mut logarithm = [0_usize; 256];
        let mut x = 1_u8;
        for exponent in 0..255 {
            (power[exponent], power[exponent + 255]) = (x, x);
            logarithm[usize::from(x)] = exponent;
            x ^= times2(x); // times 3, a generator
        }
        let mut substitute = [0; 256];
        let mut mixed = [[0; 256]; 4];
        for byte in 0..256 {
            let inverse = if byte == 0 { 0 } else { power[255 - logarithm[byte]] };
            let turned = (1..5).fold(inverse, |sum, shift| sum ^ inverse.rotate_left(shift));
            let s = turned ^ 0x63;
            substitute[byte] = s;
            let first = u32::from_be_bytes([times2(s), s, s, times2(s) ^ s]);
            for (turn, table) in mixed.iter_mut().enumerate() {
                table[byte] = first.rotate_right(8 * turn as u32);
            }
        }
        Self { substitute, mixed }
    }

    fn expand(&self, key: [u8; 16]) -> [u32; 44] {
        let mut words = [0; 44];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut constant = 1;
        for at in 4..44 {
            let mut word = words[at - 1];
            if at % 4 == 0 {
                let bytes = word.rotate_left(8).to_be_bytes();
                let substituted = bytes.map(|byte| self.substitute[usize::from(byte)]);
                word = u32::from_be_bytes(substituted) ^ u32::from(constant) << 24;
                constant = times2(constant);
            }
            words[at] = words[at - 4] ^ word;
        }
        words
    }

    fn encrypt_block(&self, words: &[u32; 44], block: u128) -> u128 {
        let [t0, t1, t2, t3] = &self.mixed;
        let byte = |word: u32, shift: u32| (word >> shift & 255) as usize;
        let mut state: [u32; 4] =
            std::array::from_fn(|at| (block >> (96 - 32 * at)) as u32 ^ words[at]);
        for round in words[4..40].chunks_exact(4) {
            state = std::array::from_fn(|at| {
                t0[byte(state[at], 24)]
                    ^ t1[byte(state[(at + 1) % 4], 16)]
                    ^ t2[byte(state[(at + 2) % 4], 8)]
                    ^ t3[byte(state[(at + 3) % 4], 0)]
                    ^ round[at]
            });
        }
        (0..4).fold(0, |out, at| {
            let bytes = [(at, 24), (at + 1, 16), (at + 2, 8), (at + 3, 0)]
                .map(|(column, shift)| self.substitute[byte(state[column % 4], shift)]);
            out << 32 | u128::from(u32::from_be_bytes(bytes) ^ words[40 + at])
        })
    }

    /// Encrypts, or decrypts, beginning with this value of the counter.
    pub(crate) fn counter_mode(&self, key: [u8; 16], mut counter: u128, data: &[u8]) -> Vec<u8> {
        let words = self.expand(key);
        let mut out = Vec::with_capacity(data.len());
        for piece in data.chunks(16) {
            let pad = self.encrypt_block(&words, counter).to_be_bytes();
            counter = counter.wrapping_add(1);
            out.extend(piece.iter().zip(pad).map(|(byte, pad)| byte ^ pad));
        }
        out
    }
}

fn times2(value: u8) -> u8 {
    value << 1 ^ if value & 0x80 != 0 { 0x1B } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::Tables;

    #[test]
    fn counter_mode_of_sp_800_38a() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let counter = 0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_feff;
        let plain = [
            0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128.to_be_bytes(),
            0xae2d_8a57_1e03_ac9c_9eb7_6fac_45af_8e51_u128.to_be_bytes(),
        ]
        .concat();
        let expected = [
            0x874d_6191_b620_e326_1bef_6864_990d_b6ce_u128.to_be_bytes(),
            0x9806_f66b_7970_fdff_8617_187b_b9ff_fdff_u128.to_be_bytes(),
        ]
        .concat();
        let tables = Tables::new();
        let cipher = tables.counter_mode(key, counter, &plain);
        assert_eq!(cipher, expected);
        assert_eq!(tables.counter_mode(key, counter, &cipher), plain);
    }
}
