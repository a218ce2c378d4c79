//! Selectors: what they pick, where they complain, and that what prints parses.

use proptest::prelude::*;

use super::*;

fn spec() -> Spec {
    serde_json::from_value(serde_json::json!({
        "kind": "yuno",
        "artifact": {"sha256": "0".repeat(64), "size_bytes": 1, "role": "web", "version": "1.4.2"},
        "labels": {"tier": "gold", "and": "or"},
    }))
    .unwrap()
}

#[track_caller]
fn check(text: &str, picked: bool) {
    let (name, spec) = ("prod/shop-1".parse().unwrap(), spec());
    let unit = Unit {
        host: HostId(uuid::Uuid::from_u128(7)),
        hostname: "anna",
        name: &name,
        spec: &spec,
        phase: Phase::Running,
    };
    let select: Select = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(select.picks_unit(&unit), picked, "{text}");
    assert_eq!(select.to_string().parse::<Select>().unwrap(), select, "{text} prints as {select}");
}

#[test]
fn what_is_picked() {
    for (text, picked) in [
        ("realm=prod", true),
        ("realm = prod", true),
        ("realm!=prod", false),
        ("not realm=prod", false),
        ("not not realm=prod", true),
        ("realm=prod and role=web and not label.tier=gold and version=1.*", false),
        ("realm=prod and role=web and label.tier=gold and version=1.*", true),
        ("host=anna", true),
        ("host=00000000-0000-0000-0000-000000000007", true),
        ("host!=anna", false),
        ("host!=bert", true),
        ("id=prod/shop-?", true),
        ("id=prod/shop", false),
        ("name=shop-1 and kind=yuno and phase=running", true),
        ("phase=r*", true),
        ("version=1.?.2", true),
        ("version=*.2", true),
        ("version=*", true),
        ("version=2*", false),
        ("label.tier", true),
        ("label.other", false),
        ("label.other=x", false),
        ("label.other!=x", true),
        ("not label.other", true),
        ("label.and=or", true),
        // `and` binds more tightly than `or`.
        ("realm=prod or realm=x and role=y", true),
        ("(realm=prod or realm=x) and role=y", false),
        ("realm=x or realm=y or realm=prod", true),
        ("  ( ( realm=prod ) )  ", true),
        ("name=\"shop-1\"", true),
        ("name=\"shop 1\"", false),
        ("name=\"\"", false),
        ("name=\"sh\\\"op\\\\\"", false),
        ("name=and or name=shop-1", true),
    ] {
        check(text, picked);
    }
}

#[test]
fn what_is_no_selector_says_where() {
    for (text, at, words) in [
        ("", 0, "a field is wanted"),
        ("   ", 3, "a field is wanted"),
        ("realm", 5, "`=` or `!=` is wanted after realm"),
        ("realm prod", 6, "`=` or `!=`"),
        ("realm=", 6, "a value is wanted"),
        ("realm=prod role=web", 11, "`and`, `or` or the end"),
        ("realm=prod adn role=web", 11, "`and`, `or` or the end"),
        ("realm=prod and", 14, "a field is wanted"),
        ("realm=prod and and", 15, "there is no field \"and\""),
        ("colour=red", 0, "there is no field \"colour\""),
        ("label.Tier=gold", 0, "the label's name"),
        ("label.=gold", 0, "the label's name"),
        ("(realm=prod", 0, "this parenthesis is not closed"),
        ("(realm=prod role=web", 12, "`and`, `or` or `)`"),
        ("realm=prod)", 10, "`and`, `or` or the end"),
        ("name=\"x", 5, "this quotation is not closed"),
        ("name=\"\\n\"", 7, "only \\\" and"),
        ("phase=runing", 6, "there is no phase \"runing\""),
        ("kind!=pod", 6, "there is no kind \"pod\""),
        ("name=\u{fc}", 5, "a value is wanted"),
    ] {
        let error = text.parse::<Select>().unwrap_err();
        assert!(error.at() == at && error.to_string().starts_with(words), "{text:?}: {error}");
    }
    let error = "realm=prod adn role=web".parse::<Select>().unwrap_err().to_string();
    assert_eq!(error.lines().skip(1).collect::<Vec<_>>(), ["  realm=prod adn role=web", "             ^"]);
}

#[test]
fn hosts_are_picked_by_what_they_have() {
    let host = Host {
        host: HostId(uuid::Uuid::from_u128(7)),
        hostname: "shop-7",
        realms: &["default".parse().unwrap(), "prod".parse().unwrap()],
        labels: &[("tier".parse().unwrap(), "gold".to_owned())].into(),
    };
    for (text, picks) in [
        ("host=shop-*", true),
        ("host=00000000-0000-0000-0000-000000000007", true),
        ("realm=prod and realm=default", true),
        ("realm=test", false),
        ("label.tier=gold and not label.site", true),
        ("label.tier!=gold", false),
    ] {
        let select: Select = text.parse().unwrap();
        assert_eq!((select.picks_host(&host), select.not_of_hosts()), (picks, None), "{text}");
    }
    let of_units: Select = "host=a or not (realm=b and phase=running)".parse().unwrap();
    assert_eq!(of_units.not_of_hosts(), Some(&Field::Phase));
}

#[test]
fn what_is_long_or_deep_is_refused() {
    let deep = |depth| format!("{}realm=a{}", "(".repeat(depth), ")".repeat(depth));
    deep(DEPTH_MAX).parse::<Select>().unwrap();
    deep(DEPTH_MAX + 1).parse::<Select>().unwrap_err();
    format!("{}realm=a", "not ".repeat(DEPTH_MAX + 1)).parse::<Select>().unwrap_err();
    let long = vec!["id=a"; 120].join(" or ");
    long.parse::<Select>().unwrap();
    "x".repeat(SELECT_MAX_BYTES + 1).parse::<Select>().unwrap_err();
}

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        Just(Field::Host),
        Just(Field::Id),
        Just(Field::Realm),
        Just(Field::Name),
        Just(Field::Role),
        Just(Field::Version),
        "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Field::Label(name.parse().unwrap())),
    ]
}

fn select() -> impl Strategy<Value = Select> {
    let label = "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Select::Has(name.parse().unwrap()));
    let leaf = prop_oneof![
        (field(), any::<String>()).prop_map(|(field, value)| Select::Is(field, value)),
        (field(), "[a-c*?]{0,4}").prop_map(|(field, value)| Select::IsNot(field, value)),
        (field(), "and|or|not").prop_map(|(field, value)| Select::Is(field, value)),
        label,
    ];
    leaf.prop_recursive(5, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| Select::Or(Box::new(left), Box::new(right))),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| Select::And(Box::new(left), Box::new(right))),
            inner.prop_map(|of| Select::Not(Box::new(of))),
        ]
    })
}

/// The plain meaning of a pattern, as slow as it likes.
fn is_like_plainly(pattern: &[char], text: &[char]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), _) => (0..=text.len()).any(|skipped| is_like_plainly(rest, &text[skipped..])),
        (Some((wanted, rest)), Some((found, after))) => {
            (*wanted == '?' || wanted == found) && is_like_plainly(rest, after)
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn what_prints_parses_to_the_same(select in select()) {
        let text = select.to_string();
        if text.len() <= SELECT_MAX_BYTES {
            prop_assert_eq!(text.parse::<Select>().unwrap(), select, "{}", text);
        }
    }

    #[test]
    fn no_text_can_do_harm(text in any::<String>()) {
        if let Err(error) = text.parse::<Select>() {
            prop_assert!(error.at() <= text.chars().count() && !error.to_string().is_empty());
        }
    }

    #[test]
    fn no_near_miss_can_do_harm(text in "(realm|id|label\\.[a-z]|not|and|or|\\(|\\)|=|!|!=|\"|\\\\|\\*|a| ){0,20}") {
        if let Ok(select) = text.parse::<Select>() {
            prop_assert_eq!(select.to_string().parse::<Select>().unwrap(), select);
        }
    }

    #[test]
    fn patterns_mean_what_they_say(pattern in "[ab*?]{0,7}", text in "[ab]{0,7}") {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        prop_assert_eq!(is_like(&pattern, &text), is_like_plainly(&chars(&pattern), &chars(&text)));
    }

    #[test]
    fn not_is_the_opposite_and_the_rest_is_logic(left in select(), right in select(), value in "[a-c]{0,3}") {
        let values = |_: &Field| vec![Cow::from(value.as_str())];
        let (is_left, is_right) = (left.picks(&values), right.picks(&values));
        let (left, right) = (Box::new(left), Box::new(right));
        prop_assert_eq!(Select::Not(left.clone()).picks(&values), !is_left);
        prop_assert_eq!(Select::And(left.clone(), right.clone()).picks(&values), is_left && is_right);
        prop_assert_eq!(Select::Or(left, right).picks(&values), is_left || is_right);
    }
}
