//! Contents of files, and the differences between two of them.

/// Bytes of a page.
pub fn page() -> usize {
    rustix::param::page_size()
}

/// A position as the system calls have it.
pub fn offset(position: usize) -> u64 {
    u64::try_from(position).expect("a file of a test is short")
}

/// A length in memory.
pub fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a file of a test is short")
}

/// Bytes that differ from those of each other seed at each position, and mostly from each other; none is zero.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from(1 + (at / 8 + usize::from(seed) * 37) % 251).expect("below 252");
    (0..length).map(byte).collect()
}

/// The pages in which two contents differ; of different lengths, the missing bytes count as different.
pub fn differing_pages(one: &[u8], other: &[u8]) -> Vec<usize> {
    let of = |content: &[u8], number: usize| {
        let from = (number * page()).min(content.len());
        content[from..(from + page()).min(content.len())].to_vec()
    };
    let pages = one.len().max(other.len()).div_ceil(page());
    (0..pages).filter(|number| of(one, *number) != of(other, *number)).collect()
}

/// Fails with the first difference instead of all bytes.
pub fn expect_same(seen: &[u8], expected: &[u8], what: &str) {
    let differs = seen.iter().zip(expected).position(|(one, other)| one != other);
    let first = differs.map(|at| (at, seen[at], expected[at]));
    assert!(
        seen.len() == expected.len() && first.is_none(),
        "{what}: {} bytes instead of {}, first difference (position, seen, expected): {first:?}",
        seen.len(),
        expected.len(),
    );
}
