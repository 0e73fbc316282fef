//! The reasons of decisions, as `explain` tells them.

macro_rules! reasons {
    ($($(#[$attribute:meta])* $name:ident = $number:literal, $sentence:literal;)+) => {
        /// Why a policy decided as it did.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Why {
            $($(#[$attribute])* #[doc = $sentence] $name = $number,)+
        }

        impl Why {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The reason as a sentence for people.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)+
                }
            }
        }
    };
}

reasons! {
    UnknownFacts = 0, "The facts are of another version or name a tier that was not offered, so nothing is decided.";
    AlreadyBest = 1, "It is on the best tier that it may use.";
    BelowThreshold = 2, "It was not used often enough lately to be worth moving.";
    SequentialBypass = 3, "It is read or written in a stream, which the slow tier serves well.";
    InPageCache = 4, "It is in the page cache, so a faster tier would not be noticed.";
    BudgetUsedUp = 5, "The daily write budget of the faster tier is used up.";
    MovedLately = 6, "It was moved less than two half-lives ago, and its use since then does not justify another move.";
    NoRoomBelowMark = 7, "No tier that it may go to has room below its mark.";
    NothingColderThere = 8, "The faster tier has no room below its low mark, and what would leave it is not so much colder, or idle for longer, that it should make way.";
    TierSaturated = 9, "The tiers that it may go to are at the limit of their bandwidth.";
    LargerThanGap = 10, "It is larger than the gap between the marks of the faster tier, so it would displace too much.";
    PartialNotHeld = 11, "The tier cannot hold a part of a file.";
    NotAllowedFaster = 12, "Rules, pins or the state of the faster tiers keep it from going there.";
    AnswersNoSooner = 15, "The faster tier has so much to read that it answers hardly sooner than the one it is on.";
    ReadsAlike = 18, "It is mostly read, and the faster tier reads less than half as fast again as the one it is on.";
    OthersAnswerSooner = 17, "Its tier has more to read than it can serve, and another one answers sooner: some of what is read most goes there.";
    MovesNothing = 13, "The static policy moves only what rules and pins demand.";
    NoSlowerTier = 14, "There is no slower tier that it may go to.";
    NoRoom = 16, "No tier that its rule or pin allows has room for it.";
    RulesSayElsewhere = 20, "A rule or pin does not allow the tier it is on.";
    SecondTouch = 21, "It was used more than once lately, and the faster tier has room below its low mark.";
    Hotter = 22, "It is much hotter than what would leave the faster tier for it.";
    Accessed = 23, "It was used lately, and the faster tier has room below its low mark.";
    FileHot = 24, "Its file as a whole is used often.";
    WaitedFor = 25, "Its writes are waited for, which the faster tier makes short.";
    MoreFrequent = 26, "It is used frequently compared with its file, and the faster tier has bandwidth to spare.";
    UsedAtAll = 27, "It was used, and this policy asks for no more.";
    LeastRecentlyUsed = 30, "The tier is above its mark, and this was not used for longer than what stays.";
    Coldest = 31, "The tier is above its mark, and this is colder than what stays.";
    ColdestFile = 32, "The tier is above its mark, and the file is colder than those that stay.";
    WorthLeast = 33, "The tier is above its mark, and use, syncs and streams say that this gains least from it.";
    LessFrequent = 34, "The tier is above its mark, and this is used less than the rest.";
    VeryCold = 35, "The tier is above its mark, and this was hardly used lately, so it goes to the slowest tier.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_sentence_of_its_own() {
        let mut sentences: Vec<&str> = Why::ALL.iter().map(|why| why.sentence()).collect();
        assert!(sentences.iter().all(|sentence| sentence.ends_with('.') && sentence.len() > 20));
        sentences.sort_unstable();
        sentences.dedup();
        assert_eq!(sentences.len(), Why::ALL.len());
    }
}
