use muster_topics::{
    role::{Action, Identity, Role, rules},
    topic::Prefix,
};
use proptest::prelude::*;

use super::*;

const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

fn fleet() -> RenderInputs {
    RenderInputs {
        prefix: Prefix::default(),
        listen: default_listen(),
        certificates: None,
        hosts: vec![HOST.parse().unwrap()],
        consoles: vec!["main".parse().unwrap(), "h".parse().unwrap()],
        operators: vec!["anna".parse().unwrap()],
        observers: vec!["bridge".parse().unwrap()],
    }
}

fn text(kind: BrokerKind, fleet: &RenderInputs, name: &str) -> String {
    let files = render(kind, fleet).unwrap();
    files.into_iter().find(|file| file.name == name).unwrap().text
}

/// MQTT's own rule, levels against levels.
fn matches(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, topic @ ..]) => matches(filter, topic),
        ([level, filter @ ..], [asked, topic @ ..]) => level == asked && matches(filter, topic),
        _ => false,
    }
}

/// What Mosquitto's manual says of a file of permissions: denials of the user's own first, then the user's own
/// lines, then patterns, which hold for everybody.
fn mosquitto_allows(file: &str, user: &str, action: Action, topic: &str) -> bool {
    let word = if action == Action::Publish { "write" } else { "read" };
    let topic: Vec<&str> = topic.split('/').collect();
    let (mut of, mut allowed) = (None, false);
    for line in file.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let hits = |filter: &str| matches(&filter.split('/').collect::<Vec<_>>(), &topic);
        match words[..] {
            ["user", name] => of = Some(name),
            ["pattern", access, filter] => allowed |= access == word && hits(&filter.replace("%u", user)),
            ["topic", "deny", filter] if of == Some(user) && hits(filter) => return false,
            ["topic", access, filter] => allowed |= of == Some(user) && access == word && hits(filter),
            _ => panic!("Mosquitto would not understand {line:?}"),
        }
    }
    allowed
}

fn common_names() -> impl Strategy<Value = String> {
    let names =
        [HOST, OTHER, "console-main", "console-h", "operator-anna", "observer-bridge", "console-else", "operator-x"];
    prop::sample::select(names.to_vec()).prop_map(str::to_owned)
}

fn topics() -> impl Strategy<Value = String> {
    let ids = vec![HOST, OTHER, "main", "h", "anna", "console-main", "operator-anna", "console-else"];
    let of_table = (prop::sample::select(rules()), prop::sample::select(ids), "[a-z0-9]{1,3}")
        .prop_map(|(rule, id, level)| rule.pattern.replace("%u", id).replace(['+', '#'], &level));
    let hosts_own = (prop::sample::select(rules()), common_names()).prop_map(|(rule, id)| {
        rule.pattern.replace("h/+", &format!("h/{id}")).replace("%u", &id).replace(['+', '#'], "x")
    });
    let random =
        "(s/00/h|s/00/cmd|console)(/(main|all|group|presence|cmd|unit|a|0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52)){0,4}";
    prop_oneof![2 => of_table, 2 => hosts_own, 1 => random]
}

/// Whether anybody of the fleet could ever publish to it.
fn is_used(topic: &str) -> bool {
    let mut levels = topic.split('/').skip(1);
    let own = levels.next().unwrap_or_default();
    let host = own.parse().map(Identity::Host).ok();
    let console = own.parse().map(Identity::Console).ok();
    let any = Some(Identity::Console("main".parse().unwrap()));
    [host, console, any].into_iter().flatten().any(|who| who.may(Action::Publish, topic))
}

proptest! {
    /// What Mosquitto reads in its file is what the table says: to publish always, and to read what is ever published.
    #[test]
    fn mosquitto_rules_equal_the_table(common_name in common_names(), publish: bool, topic in topics()) {
        let fleet = fleet();
        let file = text(BrokerKind::Mosquitto, &fleet, "muster.acl");
        let identity: Identity = common_name.parse().unwrap();
        let action = if publish { Action::Publish } else { Action::Subscribe };
        let given = mosquitto_allows(&file, &common_name, action, &format!("muster/{topic}"));
        let is_host = matches!(identity, Identity::Host(_));
        if is_host || file.contains(&format!("\nuser {common_name}\n")) {
            if publish || is_used(&topic) {
                prop_assert_eq!(given, identity.may(action, &topic), "{} {:?} {}", common_name, action, topic);
            }
        } else if given {
            // Somebody unnamed: no more than a host of that name, which no host is.
            let as_host = rules().iter().any(|rule| {
                let own = rule.pattern.replace("%u", &common_name);
                rule.role == Role::Host
                    && rule.action == action
                    && matches(&own.split('/').collect::<Vec<_>>(), &topic.split('/').collect::<Vec<_>>())
            });
            prop_assert!(as_host, "{} {:?} {}", common_name, action, topic);
        }
        prop_assert!(!mosquitto_allows(&file, &common_name, action, &topic), "nothing outside the prefix");
    }
}

#[test]
fn prefix_and_names_replace_the_defaults() {
    let fleet = RenderInputs { prefix: "shops/north".parse().unwrap(), ..fleet() };
    for kind in BrokerKind::ALL {
        for file in render(kind, &fleet).unwrap() {
            let below = file.text.lines().filter(|line| line.contains("heartbeat"));
            for line in below {
                assert!(
                    line.contains("shops/north/") || line.contains("shops.north.") || line.contains("shops\\\\.north"),
                    "{kind:?} {}: {line}",
                    file.name
                );
            }
            assert!(!file.text.contains("%u") || file.name == "muster.acl", "{kind:?} {}", file.name);
        }
    }
}

#[test]
fn each_file_says_how_it_was_made_and_whether_it_was_tried() {
    for kind in BrokerKind::ALL {
        for file in render(kind, &fleet()).unwrap().iter().filter(|file| file.name != "enabled_plugins") {
            let untested = matches!(kind, BrokerKind::Emqx | BrokerKind::HiveMq);
            assert!(file.text.contains("muster broker render"), "{kind:?} {}", file.name);
            assert_eq!(file.text.contains("UNTESTED"), untested, "{kind:?} {}", file.name);
            assert_eq!(file.text.contains("Tested"), !untested, "{kind:?} {}", file.name);
        }
    }
}

#[test]
fn command_in_the_header_renders_the_same() {
    let fleet = RenderInputs { prefix: "a/b".parse().unwrap(), certificates: Some("/x/y/".into()), ..fleet() };
    let file = text(BrokerKind::Mosquitto, &fleet, "mosquitto.conf");
    assert!(file.contains(&format!(
        "`muster broker render --program mosquitto --topic-prefix a/b --certificates /x/y --host {HOST} --console main --console h \
         --operator anna --observer bridge`"
    )), "{file}");
    assert!(file.contains("cafile /x/y/authority.pem\n"), "{file}");
}

#[test]
fn ambiguous_folders_are_refused() {
    for odd in ["", "/a b", "/a\"b", "/a\nlistener 1", "/a#b", "/ä"] {
        let fleet = RenderInputs { certificates: Some(odd.into()), ..fleet() };
        assert_eq!(render(BrokerKind::Nats, &fleet), Err(RenderError::Folder(odd.into())));
    }
}

#[test]
fn broker_names_parse() {
    for kind in BrokerKind::ALL {
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert!("hive".parse::<BrokerKind>().unwrap_err().to_string().contains("hivemq"));
}
