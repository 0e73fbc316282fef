//! Rules match as they read, and those that cannot work are refused at the right place.

use polymux_policy::{FileFacts, PolicyKind, Rule, RuleError, RuleField, RuleMatch, RuleProblem, RuleSet};

const TIERS: [u16; 3] = [0, 1, 2];

fn rule(matches: RuleMatch) -> Rule {
    Rule { matches, policy: Some(PolicyKind::Lru), ..Rule::default() }
}

fn path(pattern: &str) -> RuleMatch {
    RuleMatch { path: Some(pattern.to_owned()), ..RuleMatch::default() }
}

fn none(_: &[u8]) -> Option<Vec<u8>> {
    None
}

fn file(path: &str) -> FileFacts<'_> {
    FileFacts { path: path.as_bytes(), size: 100, age_seconds: 100, uid: 1, gid: 2, xattr: &none }
}

fn refused(rules: Vec<Rule>) -> RuleError {
    RuleSet::new(rules, &TIERS).expect_err("these rules cannot work")
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = vec![rule(path("*.iso")), rule(path("a/**")), rule(RuleMatch::default())];
    let set = RuleSet::new(rules, &TIERS).expect("good rules");
    let index = |name| set.first_match(&file(name)).map(|(index, _)| index);
    assert_eq!(index("a/b.iso"), Some(0));
    assert_eq!(index("/a/b/c"), Some(1));
    assert_eq!(index("b"), Some(2));
    assert!(set.needs_path() && !set.needs_xattrs());
}

#[test]
fn no_rule_is_a_match_for_nothing() {
    let set = RuleSet::new(vec![rule(path("x"))], &TIERS).expect("a good rule");
    assert!(set.first_match(&file("y")).is_none());
    assert!(RuleSet::default().first_match(&file("y")).is_none());
}

#[test]
fn limits_are_inclusive_and_all_conditions_must_hold() {
    let limits = RuleMatch {
        size_min: Some(100),
        size_max: Some(100),
        age_min_seconds: Some(100),
        age_max_seconds: Some(100),
        uid: Some(1),
        gid: Some(2),
        ..RuleMatch::default()
    };
    let set = RuleSet::new(vec![rule(limits)], &TIERS).expect("a good rule");
    let good = file("x");
    assert!(set.first_match(&good).is_some());
    for other in [
        FileFacts { size: 99, ..good },
        FileFacts { size: 101, ..good },
        FileFacts { age_seconds: 99, ..good },
        FileFacts { age_seconds: 101, ..good },
        FileFacts { uid: 2, ..good },
        FileFacts { gid: 1, ..good },
    ] {
        assert!(set.first_match(&other).is_none());
    }
}

#[test]
fn an_attribute_is_matched_by_name_or_by_name_and_value() {
    let with = |value: Option<&[u8]>| {
        let xattr = Some((b"user.class".to_vec(), value.map(<[u8]>::to_vec)));
        RuleSet::new(vec![rule(RuleMatch { xattr, ..RuleMatch::default() })], &TIERS).expect("a good rule")
    };
    let hot = |name: &[u8]| (name == b"user.class").then(|| b"hot".to_vec());
    let has = FileFacts { xattr: &hot, ..file("x") };
    assert!(with(None).first_match(&has).is_some());
    assert!(with(Some(b"hot")).first_match(&has).is_some());
    assert!(with(Some(b"cold")).first_match(&has).is_none());
    assert!(with(None).first_match(&file("x")).is_none());
    assert!(with(None).needs_xattrs() && !with(None).needs_path());
}

#[test]
fn impossible_rules_are_refused_with_their_field() {
    let good = rule(path("good"));
    let at = |bad: Rule| {
        let error = refused(vec![good.clone(), bad]);
        assert_eq!(error.rule, 1);
        assert!(error.to_string().starts_with("rule 2: "));
        (error.field, error.problem)
    };
    let size = RuleMatch { size_min: Some(2), size_max: Some(1), ..RuleMatch::default() };
    assert_eq!(at(rule(size)), (RuleField::Size, RuleProblem::MinAboveMax { min: 2, max: 1 }));
    let age = RuleMatch { age_min_seconds: Some(9), age_max_seconds: Some(8), ..RuleMatch::default() };
    assert_eq!(at(rule(age)), (RuleField::Age, RuleProblem::MinAboveMax { min: 9, max: 8 }));
    let tiers = |tiers: &[u16]| Rule { tiers: tiers.to_vec(), ..rule(path("t")) };
    assert_eq!(at(tiers(&[0, 7])), (RuleField::Tiers, RuleProblem::UnknownTier { tier: 7 }));
    assert_eq!(at(tiers(&[1, 0, 1])), (RuleField::Tiers, RuleProblem::TierTwice { tier: 1 }));
    assert!(matches!(at(rule(path("a["))), (RuleField::Path, RuleProblem::BadPattern { .. })));
    assert_eq!(at(Rule { policy: None, ..rule(path("e")) }), (RuleField::Rule, RuleProblem::NoEffect));
    let nameless = RuleMatch { xattr: Some((Vec::new(), None)), ..RuleMatch::default() };
    assert_eq!(at(rule(nameless)), (RuleField::Xattr, RuleProblem::EmptyXattrName));
}

#[test]
fn rules_in_each_others_way_are_refused() {
    let pair = |first: RuleMatch, second: RuleMatch| refused(vec![rule(first), rule(second)]).problem;
    assert_eq!(pair(path("*.iso"), path("**/*.iso")), RuleProblem::SameConditions { earlier: 0 });
    assert_eq!(pair(path("/a/"), path("a/b/*")), RuleProblem::NeverMatches { earlier: 0 });
    assert_eq!(pair(RuleMatch::default(), path("x")), RuleProblem::NeverMatches { earlier: 0 });
    let sizes = |min, max| RuleMatch { size_min: min, size_max: max, ..RuleMatch::default() };
    assert_eq!(pair(sizes(Some(10), None), sizes(Some(20), Some(30))), RuleProblem::NeverMatches { earlier: 0 });
    assert_eq!(pair(sizes(None, None), sizes(Some(0), None)), RuleProblem::SameConditions { earlier: 0 });
    let named = |name: &str, pattern| Rule { name: name.to_owned(), ..rule(path(pattern)) };
    let twins = refused(vec![named("n", "x"), named("n", "y")]);
    assert_eq!((twins.field, twins.problem), (RuleField::Name, RuleProblem::SameName { earlier: 0 }));
}

#[test]
fn rules_that_only_overlap_are_accepted() {
    let owner = |uid| RuleMatch { uid: Some(uid), ..RuleMatch::default() };
    let sizes = |min, max| RuleMatch { size_min: min, size_max: max, ..RuleMatch::default() };
    let xattr = |value: Option<&[u8]>| RuleMatch {
        xattr: Some((b"user.c".to_vec(), value.map(<[u8]>::to_vec))),
        ..RuleMatch::default()
    };
    let rules = [
        path("a/b/**"),
        path("a/**"),
        path("*.iso"),
        owner(1),
        owner(2),
        sizes(Some(10), Some(20)),
        sizes(Some(15), Some(30)),
        xattr(Some(b"hot")),
        xattr(None),
        RuleMatch::default(),
    ];
    let set = RuleSet::new(rules.into_iter().map(rule).collect(), &TIERS).expect("each rule has files of its own");
    assert_eq!(set.rules().count(), 10);
}

#[test]
fn a_rule_allows_its_tiers_or_all() {
    assert_eq!(Rule { tiers: vec![2, 0], ..Rule::default() }.allowed(), 0b101);
    assert_eq!(Rule::default().allowed(), u64::MAX);
}
