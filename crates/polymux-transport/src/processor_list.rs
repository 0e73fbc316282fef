//! Lists of processors, as the kernel writes them below `/sys/devices/system/cpu`.

/// How many numbers a list like `0-3,8-11` has.
pub(crate) fn count_of(list: &str) -> Option<usize> {
    let length = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0_usize, |sum, range| sum.checked_add(length(range)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_whatever_is_missing_between_them() {
        assert_eq!(count_of("0\n"), Some(1));
        assert_eq!(count_of("0-1\n"), Some(2));
        assert_eq!(count_of("0-3,8-11\n"), Some(8));
        assert_eq!(count_of("0,2,4-5\n"), Some(4));
        for broken in ["\n", "0-", "3-1", "0,,1", "a"] {
            assert_eq!(count_of(broken), None, "{broken}");
        }
    }
}
