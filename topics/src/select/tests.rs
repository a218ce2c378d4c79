//! Tests of selectors: matches, errors, and that printed ones parse.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    value::{is_like, number, version},
    *,
};
use crate::heartbeat::HostState;

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
        content: None,
    };
    let select: Select = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(select.picks_unit(&unit), picked, "{text}");
    assert_eq!(select.to_string().parse::<Select>().unwrap(), select, "{text} prints as {select}");
}

#[test]
fn version_is_running_and_wanted_version_desired() {
    let (name, spec): (UnitName, Spec) = ("prod/shop-1".parse().unwrap(), spec());
    let earlier = Content { artifact: "web@1.3.0".to_owned(), configs: Vec::new() };
    for (content, text, picked) in [
        (Some(&earlier), "version=1.3.0", true),
        (Some(&earlier), "version=1.4.2", false),
        (Some(&earlier), "version<1.4 and wanted.version>=1.4", true),
        (Some(&earlier), "wanted.version=1.4.2", true),
        // Of what nobody has told, or there is not yet.
        (None, "version=1.4.2 and wanted.version=1.4.2", true),
    ] {
        let (host, hostname) = (HostId(uuid::Uuid::from_u128(7)), "anna");
        let unit = Unit { host, hostname, name: &name, spec: &spec, phase: Phase::Running, content };
        assert_eq!(text.parse::<Select>().unwrap().picks_unit(&unit), picked, "{text}");
    }
}

#[test]
fn unit_selectors_match() {
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
        ("wanted.version=1.4.*", true),
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
fn invalid_selector_error_has_position() {
    for (text, at, words) in [
        ("", 0, "expected a field"),
        ("   ", 3, "expected a field"),
        ("realm", 5, "expected `=` or `!=` after realm"),
        ("realm prod", 6, "expected `=` or `!=`"),
        ("realm=", 6, "expected a value"),
        ("realm=prod role=web", 11, "expected `and`, `or` or the end"),
        ("realm=prod adn role=web", 11, "expected `and`, `or` or the end"),
        ("realm=prod and", 14, "expected a field"),
        ("realm=prod and and", 15, "unknown field \"and\""),
        ("colour=red", 0, "unknown field \"colour\""),
        ("label.Tier=gold", 0, "the label's name"),
        ("label.=gold", 0, "the label's name"),
        ("(realm=prod", 0, "this parenthesis is not closed"),
        ("(realm=prod role=web", 12, "expected `and`, `or` or `)`"),
        ("realm=prod)", 10, "expected `and`, `or` or the end"),
        ("name=\"x", 5, "this quotation is not closed"),
        ("name=\"\\n\"", 7, "only \\\" and"),
        ("phase=runing", 6, "unknown phase \"runing\""),
        ("kind!=pod", 6, "unknown kind \"pod\""),
        ("name=\u{fc}", 5, "expected a value"),
    ] {
        let error = text.parse::<Select>().unwrap_err();
        assert!(error.at() == at && error.to_string().starts_with(words), "{text:?}: {error}");
    }
    let error = "realm=prod adn role=web".parse::<Select>().unwrap_err().to_string();
    assert_eq!(error.lines().skip(1).collect::<Vec<_>>(), ["  realm=prod adn role=web", "             ^"]);
}

fn state() -> HostState {
    serde_json::from_value(serde_json::json!({
        "hostname": "shop-7", "agent_version": "0.10.2", "interfaces": {}, "units": {},
        "facts": {
            "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-arm64", "arch": "aarch64", "cpus": 4,
            "cpu_model": "Cortex-A72", "memory_bytes": 8_u64 << 30, "boot_id": "b", "boot_ms": 0,
        },
        "labels": {"tier": "gold", "floor": "3", "size": "1.5G"},
        "realms": ["default", "prod"],
        "command_keys": {"ids": [], "authorities": []}, "desired": {"mark": {"epoch": 0, "generation": 0}},
    }))
    .unwrap()
}

#[track_caller]
fn check_host(text: &str, picked: bool) {
    let (web, till) = ("prod/shop-1".parse().unwrap(), "prod/till".parse().unwrap());
    let (spec, mut other) = (spec(), spec());
    let Spec::Yuno(yuno) = &mut other else { panic!("a yuno") };
    yuno.artifact.role = "till".parse().unwrap();
    yuno.common.labels.clear();
    let host = HostId(uuid::Uuid::from_u128(7));
    let unit = |name, spec, phase| Unit { host, hostname: "shop-7", name, spec, phase, content: None };
    let units = [unit(&web, &spec, Phase::Running), unit(&till, &other, Phase::Failed)];
    let state = state();
    let select: HostSelect = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(select.picks(&Host::of(host, &state, &units)), picked, "{text}");
    assert_eq!(select.to_string().parse::<HostSelect>().unwrap(), select, "{text} prints as {select}");
}

#[test]
fn host_selectors_match_facts_and_labels() {
    for (text, picked) in [
        ("host=shop-*", true),
        ("host=00000000-0000-0000-0000-000000000007", true),
        ("realm=prod and realm=default", true),
        ("realm=test", false),
        ("label.tier=gold and not label.site", true),
        ("label.tier!=gold", false),
        ("fact.os=Debian*", true),
        ("fact.os=\"Debian GNU/Linux 12 (bookworm)\"", true),
        ("fact.os=Alpine*", false),
        ("fact.arch=aarch64 and fact.cpu_model=Cortex-A7?", true),
        ("fact.cpus=4 and fact.cpus=4.0 and fact.cpus!=3", true),
        ("fact.cpus>3 and fact.cpus>=4 and fact.cpus<=4 and fact.cpus<5", true),
        ("fact.cpus>4 or fact.cpus<4", false),
        ("fact.memory_bytes=8G and fact.memory_bytes>=8192M", true),
        ("fact.memory_bytes>8G", false),
        ("fact.memory_bytes >= 7.5g", true),
        // As versions, not as texts.
        ("fact.kernel>=5.10 and fact.kernel<6.2 and fact.kernel<=6.1", true),
        ("fact.kernel=6.1.*", true),
        ("fact.agent_version>0.9 and fact.agent_version<0.10.3", true),
        // Labels are texts, unless they are compared.
        ("label.floor>=3 and label.floor<10 and label.size>1G", true),
        ("label.tier>0 or label.tier<=0 or label.other<1", false),
    ] {
        check_host(text, picked);
    }
}

#[test]
fn host_selectors_match_units() {
    for (text, picked) in [
        ("unit(role=web)", true),
        ("unit.role=web", true),
        ("unit=prod/till", true),
        ("unit=prod/t*", true),
        ("unit=prod/bar", false),
        ("unit!=prod/bar", true),
        ("unit!=prod/till", false),
        ("unit.phase=failed", true),
        ("unit.phase!=failed", false),
        ("unit.phase=stopped or unit.phase=starting", false),
        // One and the same unit, or two.
        ("unit(role=web and phase=failed)", false),
        ("unit.role=web and unit.phase=failed", true),
        ("unit(role=till and phase=failed)", true),
        ("unit (role=web and not label.tier=tin)", true),
        ("not unit(phase=backoff)", true),
        // None of its units is so, or one is not so.
        ("unit.role!=web", false),
        ("unit(role!=web)", true),
        ("unit.label.tier", true),
        ("unit.wanted.version=1.4.2", true),
        ("unit.label.tier=gold and unit.version>=1.4 and unit.version<1.10", true),
        ("unit(host=shop-7 and realm=prod)", true),
        ("fact.cpus=4 and (unit=prod/bar or unit(kind=yuno))", true),
    ] {
        check_host(text, picked);
    }
    let asks = |text: &str| text.parse::<HostSelect>().unwrap().asks_units();
    assert!(asks("host=a or not (realm=b and unit.role=c)") && !asks("host=a or not (realm=b and label.unit=x)"));
}

#[test]
fn unknown_host_matches_no_facts() {
    let (labels, host) = (BTreeMap::new(), HostId(uuid::Uuid::from_u128(7)));
    let silent =
        Host { host, hostname: "new", agent_version: "", facts: None, labels: &labels, realms: &[], units: &[] };
    for (text, picked) in [
        ("host=new", true),
        ("fact.os=*", false),
        ("fact.agent_version=*", false),
        ("fact.cpus<1000", false),
        ("label.site", false),
        ("not unit(name=*)", true),
    ] {
        assert_eq!(text.parse::<HostSelect>().unwrap().picks(&silent), picked, "{text}");
    }
}

#[test]
fn invalid_host_selector_error_has_position() {
    for (text, at, words) in [
        ("", 0, "expected a field: host, realm, label.NAME, fact.NAME or unit("),
        ("realm=a and phase=failed", 12, "`phase` is a field of units"),
        ("fact.colour=red", 0, "unknown fact \"colour\"; use one of os, kernel,"),
        ("fact=red", 0, "unknown field \"fact\""),
        ("fact.cpus", 9, "expected `=` or `!=` after fact.cpus"),
        ("fact.cpus>many", 10, "expected a number"),
        ("fact.cpus=4*", 10, "expected a number"),
        ("fact.memory_bytes>8X", 18, "expected a number"),
        ("label.floor>three", 12, "expected a number"),
        ("fact.kernel>=new", 13, "expected a version"),
        ("fact.os>Debian", 7, "`fact.os` is text, and `>` compares numbers"),
        ("unit", 4, "expected `(`, `=` or `!=` after unit"),
        ("unit.phase", 10, "expected `(`, `=` or `!=` after unit.phase"),
        ("unit.colour=red", 0, "unknown field \"colour\"; use host, id,"),
        ("unit>a", 4, "`id` is text"),
        ("unit.phase=runing", 11, "unknown phase \"runing\""),
        ("unit(role=web", 4, "this parenthesis is not closed"),
        ("unit(role=web and fact.os=x)", 18, "`fact.os` is a field of hosts"),
        ("unit(unit(role=web))", 5, "unknown field \"unit\""),
        ("unit()", 5, "expected a field"),
    ] {
        let error = text.parse::<HostSelect>().unwrap_err();
        assert!(error.at() == at && error.to_string().starts_with(words), "{text:?} at {}: {error}", error.at());
    }
    let of_hosts = "role=web and fact.os=x".parse::<Select>().unwrap_err();
    assert!(of_hosts.at() == 13 && of_hosts.to_string().starts_with("`fact.os` is a field of hosts"), "{of_hosts}");
    "unit=a/b".parse::<Select>().unwrap_err();
}

#[test]
fn numbers_and_versions_are_compared() {
    for (text, found) in [
        ("4", Some(4.0)),
        ("-4.5", Some(-4.5)),
        ("1.5K", Some(1_536.0)),
        ("2t", Some(2_199_023_255_552.0)),
        ("", None),
        ("G", None),
        ("-", None),
        (".5", None),
        ("5.", None),
        ("1e9", None),
        ("inf", None),
        ("NaN", None),
        ("1.2.3", None),
        ("4 ", None),
        ("\u{664}", None),
    ] {
        assert_eq!(number(text), found, "{text}");
    }
    assert_eq!(number(&"9".repeat(400)), None, "beyond what numbers hold");
    for (text, found) in [
        ("1.10", Some(vec![1, 10])),
        ("6.1.0-18-amd64", Some(vec![6, 1])),
        ("1.2.0", Some(vec![1, 2])),
        ("0.0", Some(vec![])),
        ("3rc1.5", Some(vec![3])),
        ("2..5", Some(vec![2])),
        ("99999999999999999999", Some(vec![u64::MAX])),
        ("v1", None),
        ("", None),
    ] {
        assert_eq!(version(text), found, "{text}");
    }
}

#[test]
fn long_or_deep_selector_is_refused() {
    let deep = |depth| format!("{}realm=a{}", "(".repeat(depth), ")".repeat(depth));
    deep(DEPTH_MAX).parse::<Select>().unwrap();
    deep(DEPTH_MAX + 1).parse::<Select>().unwrap_err();
    format!("{}realm=a", "not ".repeat(DEPTH_MAX + 1)).parse::<Select>().unwrap_err();
    let units = |depth| format!("{}unit.name!=a{}", "(".repeat(depth), ")".repeat(depth));
    let deep = units(DEPTH_MAX - 2).parse::<HostSelect>().unwrap();
    assert_eq!(deep.to_string(), "not unit(name=a)");
    units(DEPTH_MAX - 1).parse::<HostSelect>().unwrap_err();
    let nots = format!("{}unit.name!=a", "not ".repeat(DEPTH_MAX - 2)).parse::<HostSelect>().unwrap();
    assert_eq!(nots.to_string().parse::<HostSelect>().unwrap(), nots);
    let long = vec!["id=a"; 120].join(" or ");
    long.parse::<Select>().unwrap();
    let short = vec!["unit=a/b"; 80].join(" or ");
    assert!(short.len() < SELECT_MAX_BYTES);
    let error = short.parse::<HostSelect>().unwrap_err().to_string();
    assert!(error.starts_with("written in full it has"), "{error}");
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
        Just(Field::WantedVersion),
        "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Field::Label(name.parse().unwrap())),
    ]
}

fn select() -> impl Strategy<Value = Select> {
    let label = "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Select::Has(name.parse().unwrap()));
    let compared = prop_oneof![
        Just(Field::Version),
        "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Field::Label(name.parse().unwrap())),
    ];
    let leaf = prop_oneof![
        (field(), any::<String>()).prop_map(|(field, value)| Select::Is(field, value)),
        (field(), "[a-c*?]{0,4}").prop_map(|(field, value)| Select::IsNot(field, value)),
        (field(), "and|or|not").prop_map(|(field, value)| Select::Is(field, value)),
        (compared, order(), "[0-9]{1,4}(\\.[0-9]{1,2})?")
            .prop_map(|(field, order, value)| Select::Compares(field, order, value)),
        label,
    ];
    logic(leaf)
}

fn order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Less, Order::AtMost, Order::More, Order::AtLeast])
}

fn host_select() -> impl Strategy<Value = HostSelect> {
    let text = prop_oneof![
        Just(Field::Host),
        Just(Field::Realm),
        "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Field::Label(name.parse().unwrap())),
        prop::sample::select(vec![Fact::Os, Fact::Arch, Fact::CpuModel, Fact::Kernel, Fact::AgentVersion])
            .prop_map(Field::Fact),
    ];
    let number = prop::sample::select(vec![Fact::Cpus, Fact::MemoryBytes]).prop_map(Field::Fact);
    let amount = "-?[0-9]{1,5}(\\.[0-9]{1,3})?[KMGT]?";
    let leaf = prop_oneof![
        (text, any::<String>()).prop_map(|(field, value)| Select::Is(field, value)),
        (number.clone(), amount).prop_map(|(field, value)| Select::IsNot(field, value)),
        (number, order(), amount).prop_map(|(field, order, value)| Select::Compares(field, order, value)),
        "[a-z0-9][a-z0-9_-]{0,8}".prop_map(|name| Select::Has(name.parse().unwrap())),
        select().prop_map(|of| Select::Unit(Box::new(of))),
    ];
    logic(leaf).prop_map(HostSelect)
}

fn logic(leaf: impl Strategy<Value = Select> + 'static) -> impl Strategy<Value = Select> {
    leaf.prop_recursive(5, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| Select::Or(Box::new(left), Box::new(right))),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| Select::And(Box::new(left), Box::new(right))),
            inner.prop_map(|of| Select::Not(Box::new(of))),
        ]
    })
}

/// Something of which every field has the same value.
struct Same(String);

impl Subject for Same {
    fn values(&self, _: &Field) -> Vec<Cow<'_, str>> {
        vec![self.0.as_str().into()]
    }

    fn has_unit(&self, wanted: &Select) -> bool {
        wanted.picks(self)
    }
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
    fn what_picks_hosts_prints_and_parses_to_the_same(select in host_select()) {
        let text = select.to_string();
        if text.len() <= SELECT_MAX_BYTES {
            prop_assert_eq!(&text.parse::<HostSelect>().unwrap(), &select, "{}", text);
            let json = serde_json::to_string(&select).unwrap();
            prop_assert_eq!(serde_json::from_str::<HostSelect>(&json).unwrap(), select);
        }
    }

    #[test]
    fn no_near_miss_of_hosts_can_do_harm(
        text in "(unit|unit\\.(role|x)|fact\\.(cpus|os)|label\\.[a-z]|host|not|and|or|\\(|\\)|=|!=|<|>=|\"|4|8G|\\*|a| ){0,20}",
    ) {
        match text.parse::<HostSelect>() {
            Ok(select) => prop_assert_eq!(select.to_string().parse::<HostSelect>().unwrap(), select),
            Err(error) => prop_assert!(error.at() <= text.chars().count() && !error.to_string().is_empty()),
        }
    }

    #[test]
    fn versions_are_ordered_number_by_number(left in prop::collection::vec(0..12u64, 1..4), right in prop::collection::vec(0..12u64, 1..4)) {
        let text = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
        let plain = |numbers: &[u64]| (0..4).map(|at| numbers.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
        let found = version(&text(&left)).cmp(&version(&text(&right)));
        prop_assert_eq!(found, plain(&left).cmp(&plain(&right)));
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
        let same = Same(value);
        let (is_left, is_right) = (left.picks(&same), right.picks(&same));
        let (left, right) = (Box::new(left), Box::new(right));
        prop_assert_eq!(Select::Not(left.clone()).picks(&same), !is_left);
        prop_assert_eq!(Select::And(left.clone(), right.clone()).picks(&same), is_left && is_right);
        prop_assert_eq!(Select::Or(left, right).picks(&same), is_left || is_right);
    }
}

#[test]
fn selectors_that_require_a_label_or_an_id_are_told_from_others() {
    for (text, requires) in [
        ("label.role=till", true),
        ("label.role", true),
        ("label.role=till and not label.frozen=yes", true),
        ("label.role=till and fact.cpus>=4", true),
        ("label.role=till or label.role=web", true),
        ("host=0191e4a8-0000-7000-8000-000000000001", true),
        ("host=*", false),
        ("not label.frozen=yes", false),
        ("label.role!=till", false),
        ("fact.cpus>=4", false),
        ("realm=shop", false),
        ("label.role=till or fact.os=debian", false),
        ("not (fact.cpus>=4 and label.role=till)", false),
        ("host!=anna", false),
    ] {
        assert_eq!(text.parse::<HostSelect>().unwrap().requires_label(), requires, "{text}");
    }
}

proptest! {
    #[test]
    fn nothing_that_a_host_reports_stands_in_for_a_label(
        select in host_select(), id: u128, cpus in 1u32..9, memory_bytes: u64, os in "[a-z]{0,4}",
        realms in prop::collection::vec("[a-c]{1,2}", 0..3),
    ) {
        let host = HostId(uuid::Uuid::from_u128(id));
        let facts = crate::heartbeat::Facts { os, cpus, memory_bytes, ..Default::default() };
        let realms: Vec<Name> = realms.iter().map(|realm| realm.parse().unwrap()).collect();
        let hostname = host.to_string();
        let blank = Host {
            host, hostname: &hostname, agent_version: "1.2", facts: Some(&facts), labels: &BTreeMap::new(),
            realms: &realms, units: &[],
        };
        if select.requires_label() {
            prop_assert!(!select.picks(&blank), "{}", select);
        }
    }
}
