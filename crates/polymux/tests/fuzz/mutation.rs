//! Mutations of well-formed bytes.
//!
//! Invariant: the same seed gives the same mutations.

/// Numbers that limits are made of.
const INTERESTING: [u64; 14] =
    [0, 1, 2, 63, 64, 127, 255, 4096, 65_535, 65_536, i64::MAX as u64, u32::MAX as u64, u64::MAX - 1, u64::MAX];

/// Longest input that is made, as a multiple of the longest sample and beyond it.
const GROWTH_MAX: usize = 4096;

/// Pseudo-random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("a number below a usize")
    }
}

/// Changes some bytes, one to eight times.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let length_max = bytes.len() + GROWTH_MAX;
    for _ in 0..=random.below(8) {
        mutate_once(bytes, other, random);
    }
    bytes.truncate(length_max);
}

fn mutate_once(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        bytes.extend_from_slice(&random.next().to_le_bytes());
        return;
    }
    let at = position(bytes, random);
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next().to_le_bytes()[0],
        2 | 3 => put_number(&mut bytes[at..], random),
        4 => bytes.truncate(at),
        5 => {
            let length = 1 + random.below(16);
            let fill = random.next().to_le_bytes()[0];
            bytes.splice(at..at, std::iter::repeat_n(fill, length));
        }
        6 => {
            let end = bytes.len().min(at + 1 + random.below(16));
            bytes.drain(at..end);
        }
        7 => {
            let end = bytes.len().min(at + 1 + random.below(64));
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        _ if other.is_empty() => bytes[at] = 0,
        _ => {
            let from = random.below(other.len());
            let end = other.len().min(from + 1 + random.below(64));
            let target = bytes.len().min(at + end - from);
            bytes.splice(at..target, other[from..end].iter().copied());
        }
    }
}

/// A place to change: often near the beginning, where headers are, and rather something than the zeros of padding.
fn position(bytes: &[u8], random: &mut Random) -> usize {
    let near = bytes.len().min(128);
    let end = if random.below(3) == 0 { near } else { bytes.len() };
    let mut at = random.below(end);
    for _ in 0..random.below(64) {
        if bytes[at] != 0 {
            break;
        }
        at = random.below(end);
    }
    at
}

/// Overwrites a number of 1, 2, 4 or 8 bytes, in either order.
fn put_number(bytes: &mut [u8], random: &mut Random) {
    let value = INTERESTING[random.below(INTERESTING.len())].wrapping_add(random.next() % 3).wrapping_sub(1);
    let length = (1 << random.below(4)).min(bytes.len());
    let little = value.to_le_bytes();
    if random.below(2) == 0 {
        bytes[..length].copy_from_slice(&little[..length]);
    } else {
        for (target, source) in bytes[..length].iter_mut().zip(little[..length].iter().rev()) {
            *target = *source;
        }
    }
}
