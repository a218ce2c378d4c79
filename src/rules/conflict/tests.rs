use std::collections::BTreeSet;

use muster_topics::{files::FilesSpec, packages::PackagesSpec, task::Resource};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{index::owns, *};

fn name(text: &str) -> UnitName {
    format!("d/{text}").parse().unwrap()
}

fn files(value: Value) -> Spec {
    Spec::Files(serde_json::from_value::<FilesSpec>(json!({"files": value})).unwrap())
}

fn texts(paths: &[&str]) -> Spec {
    files(paths.iter().map(|path| ((*path).to_owned(), json!({"text": ""}))).collect())
}

fn packages(value: Value) -> Spec {
    Spec::Packages(serde_json::from_value::<PackagesSpec>(value).unwrap())
}

/// A unit: name, spec, the one before, whether it changes.
type Unit = (UnitName, Spec, Option<Spec>, bool);

fn unit(text: &str, spec: Spec, earlier: Option<Spec>, changes: bool) -> Unit {
    (name(text), spec, earlier, changes)
}

/// Later units are newer.
fn claimants(units: &[Unit]) -> Vec<Claimant<'_>> {
    units
        .iter()
        .enumerate()
        .map(|(at, (unit, spec, earlier, changes))| Claimant {
            unit,
            spec,
            generation: at as u64,
            earlier: earlier.as_ref(),
            changes: *changes,
        })
        .collect()
}

#[track_caller]
fn check(units: &[Unit], expected: &[(&str, &str)]) {
    let found: Vec<(String, String)> = resolve(&claimants(units))
        .into_iter()
        .map(|(unit, verdict)| {
            let told = match verdict {
                ConflictVerdict::GoBack(why) => format!("back: {why}"),
                ConflictVerdict::Hold(why) => format!("hold: {why}"),
            };
            (unit.as_str().to_owned(), told)
        })
        .collect();
    let expected: Vec<(String, String)> =
        expected.iter().map(|(unit, told)| (format!("d/{unit}"), (*told).to_owned())).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_changes_gives_way_to_what_does_not() {
    let there = || unit("a", texts(&["/x", "/y"]), None, false);
    check(&[there(), unit("b", texts(&["/z"]), None, true)], &[]);
    check(&[there(), unit("b", texts(&["/x"]), None, true)], &[("b", "hold: d/a has path /x too")]);
    let before = Some(texts(&["/z"]));
    check(&[there(), unit("b", texts(&["/x"]), before, true)], &[("b", "back: d/a has path /x too")]);
    // Neither has changed.
    check(
        &[there(), unit("b", texts(&["/x"]), None, false)],
        &[("a", "hold: d/b has path /x too"), ("b", "hold: d/a has path /x too")],
    );
    // What it goes back to is taken by now.
    let before = Some(texts(&["/y"]));
    check(
        &[there(), unit("b", texts(&["/x"]), before, true)],
        &[("a", "hold: d/b has path /y too"), ("b", "back: d/a has path /x too")],
    );
}

#[test]
fn most_conflicts_then_priority_then_newest_gives_way() {
    let new = |text: &str, paths: &[&str]| unit(text, texts(paths), None, true);
    check(&[new("a", &["/1"]), new("b", &["/1", "/2"]), new("c", &["/2"])], &[("b", "hold: d/a has path /1 too")]);
    check(&[new("a", &["/1"]), new("b", &["/1"])], &[("b", "hold: d/a has path /1 too")]);
    let mut low = texts(&["/1"]);
    if let Spec::Files(spec) = &mut low {
        spec.common.priority = 9;
    }
    check(&[unit("a", low, None, true), new("b", &["/1"])], &[("a", "hold: d/b has path /1 too")]);
}

#[test]
fn resources_conflict_as_their_kind_says() {
    let with = |one: Spec, other: Spec| {
        let units = [unit("a", one, None, false), unit("b", other, None, true)];
        resolve(&claimants(&units)).len()
    };
    let wants = |present: &str| packages(json!({"present": [present]}));
    let absent = || packages(json!({"absent": ["nginx"]}));
    assert_eq!(with(wants("nginx=1"), wants("nginx=2")), 1);
    assert_eq!(with(wants("nginx=1"), wants("nginx=1")), 0);
    assert_eq!(with(wants("nginx=1"), wants("nginx")), 0);
    assert_eq!(with(wants("nginx"), absent()), 1);
    assert_eq!(with(wants("nginx=1"), absent()), 1);
    assert_eq!(with(absent(), absent()), 0);
    let from = |url: &str, key: &str| {
        let repository = json!({"url": url, "suite": "stable", "components": ["main"], "key": key});
        packages(json!({"present": ["a"], "repositories": {"r": repository}}))
    };
    assert_eq!(with(from("http://a", "key"), from("http://a/", "key \r\n")), 0);
    assert_eq!(with(from("http://a", "key"), from("http://a/", "other")), 1);
    assert_eq!(with(from("http://a", "key"), from("http://b", "other")), 0);
    let login = |suite: &str, user: &str, secret: &str| {
        let login = json!({"user": user, "password": {"secret": secret}});
        let repository =
            json!({"url": "http://a", "suite": suite, "components": ["main"], "key": "key", "login": login});
        packages(json!({"present": ["a"], "repositories": {"r": repository}}))
    };
    assert_eq!(with(login("one", "u", "s"), login("two", "u", "s")), 0);
    assert_eq!(with(login("one", "u", "s"), login("two", "u", "other")), 1);
    assert_eq!(with(login("one", "u", "s"), login("two", "v", "s")), 1);
    assert_eq!(with(login("one", "u", "s"), from("http://a", "key")), 0);
    // The secret of another realm is another one.
    let mut of_realms = ["d/a", "e/b"].map(|text| (text.parse().unwrap(), login("one", "u", "s"), None, true));
    assert_eq!(resolve(&claimants(&of_realms)).len(), 1);
    of_realms[1].0 = name("b");
    assert_eq!(resolve(&claimants(&of_realms)).len(), 0);
    let folder = |purge: bool| files(json!({"/etc/x": {"directory": {"purge": purge}}}));
    assert_eq!(with(folder(true), texts(&["/etc/x/a/b"])), 1);
    assert_eq!(with(texts(&["/etc/x/a/b"]), folder(true)), 1);
    assert_eq!(with(folder(false), texts(&["/etc/x/a"])), 0);
    assert_eq!(with(folder(true), texts(&["/etc/xa"])), 0);
    // A folder above is no file.
    assert_eq!(with(texts(&["/etc/x"]), texts(&["/etc/x/a"])), 1);
    let port = |port: u16| -> Spec {
        let artifact =
            json!({"sha256": muster_topics::name::Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1"});
        let provides = json!([{"name": "http", "port": port}]);
        serde_json::from_value(json!({"kind": "yuno", "artifact": artifact, "provides": provides})).unwrap()
    };
    assert_eq!(with(port(80), port(80)), 1);
    assert_eq!(with(port(80), port(81)), 0);
}

#[test]
fn owner_has_what_is_below_and_the_folders_above() {
    let path = |path: &str| Resource::Path(path.to_owned());
    let purged = files(json!({"/etc/x": {"directory": {"purge": true}}}));
    assert!(owns(&purged, &path("/etc/x")) && owns(&purged, &path("/etc/x/a")) && owns(&purged, &path("/etc")));
    assert!(!owns(&purged, &path("/etc/xy")));
    let package = |name: &str| Resource::Package { name: name.to_owned(), version: None };
    let one = packages(json!({"present": ["nginx=1"], "absent": ["telnet"]}));
    assert!(owns(&one, &package("nginx")) && !owns(&one, &package("telnet")));
}

proptest! {
    /// It ends; what is left conflicts only if the state before did; what does not change is untouched then.
    #[test]
    fn worst_case_is_the_state_before(
        units in prop::collection::vec(
            (prop::collection::btree_set(0..8u8, 0..4), prop::option::of(prop::collection::btree_set(0..8u8, 0..4)), any::<bool>(), 0..3u8),
            0..8,
        ),
        swap in any::<prop::sample::Index>(),
    ) {
        let spec = |paths: &BTreeSet<u8>, priority: u8| {
            let paths: Vec<String> = paths.iter().map(|path| format!("/{path}")).collect();
            let mut spec = texts(&paths.iter().map(String::as_str).collect::<Vec<_>>());
            if let Spec::Files(spec) = &mut spec {
                spec.common.priority = priority;
            }
            spec
        };
        let units: Vec<Unit> = units
            .iter()
            .enumerate()
            .map(|(at, (paths, before, changes, priority))| {
                let before = before.as_ref().filter(|_| *changes).map(|before| spec(before, *priority));
                unit(&format!("u{at}"), spec(paths, *priority), before, *changes)
            })
            .collect();
        let list = claimants(&units);
        let verdicts = resolve(&list);
        let paths = |spec: &Spec| spec.resources().into_iter().collect::<BTreeSet<_>>();
        let twice = |specs: &[BTreeSet<Resource>]| {
            let mut seen = BTreeSet::new();
            specs.iter().flatten().any(|resource| !seen.insert(resource.clone()))
        };
        let before: Vec<_> = list
            .iter()
            .map(|one| if one.changes { one.earlier.map(paths).unwrap_or_default() } else { paths(one.spec) })
            .collect();
        let after: Vec<_> = list
            .iter()
            .map(|one| match verdicts.get(one.unit) {
                None => paths(one.spec),
                Some(_) if one.changes && one.earlier.is_some() => paths(one.earlier.unwrap()),
                Some(_) if one.changes => BTreeSet::new(),
                Some(_) => paths(one.spec),
            })
            .collect();
        prop_assert!(!twice(&after) || twice(&before), "{verdicts:?}");
        if !twice(&before) {
            prop_assert!(list.iter().all(|one| one.changes || !verdicts.contains_key(one.unit)));
        }
        // The order of the list does not matter.
        if !list.is_empty() {
            let mut other = list.clone();
            other.rotate_left(swap.index(list.len()));
            let again = resolve(&other);
            prop_assert_eq!(again.keys().collect::<Vec<_>>(), verdicts.keys().collect::<Vec<_>>());
        }
    }
}
