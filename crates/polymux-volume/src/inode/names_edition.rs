//! The edition of the names in a directory, by which a listing shows whether they changed since an earlier one began (docs/design/0043).

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts editions of names, over all directories.
#[derive(Debug, Default)]
pub struct Editions(AtomicU64);

/// The edition of the names that a directory has now.
///
/// It is given when a listing begins and lost with the next change. No edition is given twice, so that one which is still there has not been
/// lost meanwhile, nor has the directory been out of memory.
#[derive(Debug, Default)]
pub struct NamesEdition(AtomicU64);

impl NamesEdition {
    /// The names were changed, or may have been; or the directory got another parent, which its listings show as `..`.
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// The edition of the names as they are. Called with the state of the directory locked, so that it does not change meanwhile.
    pub fn now(&self, editions: &Editions) -> u64 {
        let next = || editions.0.fetch_add(1, Ordering::Relaxed) + 1;
        match self.0.load(Ordering::Acquire) {
            0 => {
                let next = next();
                self.0
                    .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire)
                    .map_or_else(|given| given, |_| next)
            }
            given => given,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edition_stays_until_the_names_change_and_is_never_given_again() {
        let editions = Editions::default();
        let (names, others) = (NamesEdition::default(), NamesEdition::default());
        let first = names.now(&editions);
        assert_eq!(names.now(&editions), first);
        assert_ne!(others.now(&editions), first);
        names.end();
        let second = names.now(&editions);
        assert!(second > first);
        assert_eq!(names.now(&editions), second);
    }
}
