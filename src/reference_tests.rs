//! The pages below `docs/reference` that are made from what the program knows of itself, so that they cannot be wrong:
//! verbs and options from clap's tree, configuration keys from the types that parse them, metrics and alerts from their
//! tables. (The API's routes have their page in `muster-console`.)

use std::{fs, path::Path};

use clap::{Arg, ArgAction, Command, CommandFactory};
use muster_api::problem_codes::{PROBLEM_CODES, ProblemCode};
use muster_base::failure::FailureKind;
use muster_test_support::{committed, markdown::Page};
use muster_topics::{
    alert::{Metric, Rule},
    catalogue::{Field, FieldKind, MEASUREMENTS, Measure, Measurement, MetricGroup, SAMPLE_S, Writing},
    outcome::{RefusalCode, Status},
};
use schemars::{JsonSchema, schema_for};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use crate::help::{
    self,
    groups::{GROUPS, RARE},
};

/// What writes all of them.
const COMMAND: &str = "cargo test -p muster --bin muster reference";

#[track_caller]
fn check(name: &str, page: Page) {
    committed::check(&committed::reference(env!("CARGO_MANIFEST_DIR"), 0, name), &page.text(), COMMAND);
}

// Verbs and options.

#[test]
fn reference_of_the_command_line_is_current() {
    let mut program = help::for_people(super::Cli::command());
    program.build();
    let mut page = Page::new("Command line", "the tree of arguments that the program parses", COMMAND);
    page.paragraph(
        "Every verb with all its options. `muster VERB --help` shows the same in a terminal. Options below \
         _Everywhere_ are those of every verb.",
    );
    for group in GROUPS.iter().chain([&RARE]) {
        page.paragraph(&format!("_{}_", group.title));
        page.gap();
        for name in group.verbs {
            let verb = program.find_subcommand(name).unwrap();
            page.item(&format!("`muster {name}`: {}", with_stop(&verb.get_about().unwrap().to_string())));
        }
    }
    verb(&mut page, &program, true);
    for name in GROUPS.iter().chain([&RARE]).flat_map(|group| group.verbs) {
        verb(&mut page, program.find_subcommand(name).unwrap(), false);
    }
    check("cli.md", page);
}

/// Adds a verb, and those below it.
fn verb(page: &mut Page, command: &Command, is_program: bool) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    page.heading(2, &format!("`{name}`"));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    about.split("\n\n").for_each(|paragraph| page.paragraph(&with_stop(paragraph)));
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        page.paragraph(&format!("Another name of it: {}.", aliases.join(", ")));
    }
    let usage = command.clone().render_usage().to_string();
    page.block("text", usage.trim_start_matches("Usage: "));
    arguments(page, command, is_program);
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        let own = after.to_string().replace(help::SAID_ONCE, "");
        if !own.trim().is_empty() {
            page.block("text", &own);
        }
    }
    // Those of the program stand in the order of their groups.
    let below = command.get_subcommands().filter(|_| !is_program);
    let verbs = below.filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    // A verb that stands for another one has no section: its noun says so.
    let is_own = |below: &&Command| {
        help::stands_for(below.get_bin_name().unwrap_or_default().trim_start_matches("muster ")).is_none()
    };
    verbs.filter(is_own).for_each(|below| verb(page, below, false));
}

/// Adds the arguments and options of a verb, by heading. Those that every verb has stand at the program alone.
fn arguments(page: &mut Page, command: &Command, is_program: bool) {
    let is_shown = |arg: &&Arg| {
        !arg.is_hide_set()
            && (is_program || !arg.is_global_set())
            && !matches!(
                arg.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            )
    };
    let heading = |arg: &Arg| match arg.get_help_heading() {
        Some(heading) => heading.to_owned(),
        None if arg.is_positional() => "Arguments".to_owned(),
        None => "Options".to_owned(),
    };
    let mut headings: Vec<String> = Vec::new();
    for arg in command.get_arguments().filter(is_shown) {
        if !headings.contains(&heading(arg)) {
            headings.push(heading(arg));
        }
    }
    for wanted in headings {
        page.paragraph(&format!("_{wanted}_"));
        page.gap();
        command.get_arguments().filter(is_shown).filter(|arg| heading(arg) == wanted).for_each(|arg| {
            page.item(&argument(arg));
        });
    }
}

fn argument(arg: &Arg) -> String {
    let short = arg.get_short().filter(|_| arg.get_long().is_some()).map(|short| format!("-{short}, "));
    let shown = arg.to_string();
    // Names of what an option takes stand in it already.
    let mut text = format!("`{}{}`", short.unwrap_or_default(), shown.trim());
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let sentences: Vec<String> = help.split("\n\n").map(with_stop).collect();
    text.push_str(&format!(": {}", sentences.join(" ")));
    let list = |all: Vec<String>| all.join(", ");
    let possible: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), help.to_string().trim_end_matches('.')),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !possible.is_empty() && !arg.is_hide_possible_values_set() {
        text.push_str(&format!(" One of: {}.", list(possible)));
    }
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if !default.is_empty() && arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        text.push_str(&format!(" Default: {}.", list(default)));
    }
    if let Some(variable) = arg.get_env().filter(|_| !arg.is_hide_env_set()) {
        text.push_str(&format!(" Variable: `{}`.", variable.to_string_lossy()));
    }
    let aliases: Vec<String> =
        arg.get_visible_aliases().unwrap_or_default().iter().map(|alias| format!("`--{alias}`")).collect();
    if !aliases.is_empty() {
        text.push_str(&format!(" Another name: {}.", list(aliases)));
    }
    text
}

/// A sentence with its full stop, which help texts leave out.
fn with_stop(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', ':', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

// Configuration keys.

#[test]
fn reference_of_configurations_is_current() {
    let mut page = Page::new("Configuration", "the types that parse the configurations of the roles", COMMAND);
    page.paragraph(
        "Every key of every role, with its default and the reason for it, as `muster agent --print-config`, \
         `muster console --print-config` and `muster broker --print-config` print it. What is commented out has no \
         value unless it is set.",
    );
    page.paragraph(
        "A key can be set in the role's file (`--config FILE`, TOML) and by a variable of the environment, which \
         comes first: `sample_ms` in `[metrics]` of an agent is `MUSTER_AGENT_METRICS_SAMPLE_MS`. An unknown key or \
         variable is an error that names the nearest known one; of one that there was, what to do instead. \
         `--check-config` says all that is wrong, and where each key is set. SIGHUP has a role read its file again.",
    );
    role::<muster_agent::config::Config>(&mut page, "Agent");
    role::<muster_console::config::Config>(&mut page, "Console");
    role::<super::role::embedded_broker::Config>(&mut page, "Broker");
    check("configuration.md", page);
}

/// Adds the keys of a role, table by table.
fn role<T: DeserializeOwned + Serialize + JsonSchema + Default>(page: &mut Page, name: &str) {
    page.heading(2, name);
    let text = muster_base::config::print(&T::default()).unwrap();
    let mut table = String::new();
    for paragraph in text.split("\n\n") {
        let header = paragraph.lines().find_map(|line| {
            let line = line.trim_start_matches("# ");
            line.starts_with('[').then(|| line.trim_matches(['[', ']']).to_owned())
        });
        if let Some(header) = header {
            page.block("toml", &table);
            table.clear();
            page.heading(3, &format!("{name}: `{header}`"));
        }
        table.push_str(paragraph);
        table.push_str("\n\n");
    }
    page.block("toml", &table);
}

// Metrics.

#[test]
fn reference_of_metrics_is_current() {
    let mut page = Page::new("Metrics", "the catalogue of metrics, `topics/src/catalogue.rs`", COMMAND);
    page.paragraph(
        "Everything that agents and consoles measure. `muster metric query`, dashboards and rules for Prometheus use \
         these names. [metrics.md](../metrics.md) says how they are asked for and how long they are kept.",
    );
    page.heading(2, "How often");
    page.paragraph(&format!(
        "An agent samples every {SAMPLE_S} s (`metrics.sample_ms`). Groups are measured as often as \
         `metrics.every_s` of its configuration says, and not at all if that is `off`. By default:"
    ));
    page.gap();
    let about = described(schema_for!(MetricGroup).as_value());
    for group in MetricGroup::ALL {
        let period = match group.period_s() {
            0 => "with each sample".to_owned(),
            period => format!("every {period} s"),
        };
        page.item(&format!("`{}`, {period}: {}", word(group), meaning(&about, &word(group))));
    }
    for one in MEASUREMENTS {
        measurement(&mut page, one);
    }
    check("metrics.md", page);
}

fn measurement(page: &mut Page, one: &Measurement) {
    page.heading(2, &format!("`{}`", one.name));
    let labels: Vec<String> = one.labels.iter().map(|label| format!("`{label}`")).collect();
    page.paragraph(&format!("Labels: {}.", labels.join(", ")));
    page.gap();
    one.fields.iter().for_each(|field| page.item(&series(one, field)));
    if let Some(others) = one.others {
        page.item(&format!("`{}_NAME`, {}: What a program tells under NAME.", one.name, written(others)));
    }
}

fn series(one: &Measurement, field: &Field) -> String {
    let kind = match field.kind {
        FieldKind::Gauge => "",
        FieldKind::Counter => "counter of ",
        FieldKind::Rate => "rate of ",
    };
    let unit = match field.unit {
        Measure::Ratio => "ratio",
        Measure::Celsius => "degrees Celsius",
        Measure::Bytes => "bytes",
        Measure::Seconds => "seconds",
        Measure::Number => "number",
        Measure::Flag => "0 or 1",
    };
    format!("`{}_{}` ({kind}{unit}; {}): {}", one.name, field.name, written(field.writing), field.about)
}

fn written(writing: Writing) -> String {
    let every = writing.every_s();
    match writing {
        Writing::Sampled(group) => format!("group `{}`, every {every} s", word(group)),
        Writing::Changed(group) => format!("group `{}`, on change and every {every} s", word(group)),
        Writing::Slow(group) => format!("group `{}`, at most every {every} s", word(group)),
        Writing::Console => format!("by the console, every {every} s"),
        Writing::State => format!("by the console, on change and every {every} s"),
    }
}

// Alerts.

#[test]
fn reference_of_alerts_is_current() {
    let source = "`src/rules/alert/defaults.rs` and `topics/src/alert/metric.rs`";
    let mut page = Page::new("Alerts", source, COMMAND);
    page.paragraph(
        "What agents look at by themselves, and what rules can be about. [alerts.md](../alerts.md) says how rules are \
         changed and where alerts are sent. A rule of the same name takes the place of a built-in one.",
    );
    let about = described(schema_for!(Metric).as_value());
    page.heading(2, "Built-in rules");
    page.paragraph(
        "An alert is raised once its metric has been beyond the level for the time, and cleared once it is back at \
         the second level.",
    );
    page.gap();
    for (name, rule) in muster_rules::alert::defaults::rules() {
        page.item(&built_in(name.as_str(), &rule, &about));
    }
    page.heading(2, "Metrics of rules");
    page.paragraph("What `muster rule set --metric` takes.");
    page.gap();
    for metric in Metric::ALL {
        page.item(&format!("`{}`: {}", metric.as_str(), meaning(&about, metric.as_str())));
    }
    check("alerts.md", page);
}

fn built_in(name: &str, rule: &Rule, about: &[(String, String)]) -> String {
    let level = |value: f64| match rule.metric.measure() {
        Measure::Ratio => format!("{}%", (value * 100.0).round()),
        Measure::Celsius => format!("{value} °C"),
        Measure::Seconds => format!("{value} s"),
        Measure::Bytes | Measure::Number | Measure::Flag => value.to_string(),
    };
    let side = if rule.metric.is_bad_if_low() { "below" } else { "above" };
    let time = match rule.for_ms / 1_000 {
        0 => "at once".to_owned(),
        seconds if seconds % 60 == 0 => format!("for {} min", seconds / 60),
        seconds => format!("for {seconds} s"),
    };
    let severity = word(rule.severity);
    let levels = match rule.metric.measure() {
        Measure::Flag => time,
        _ => format!(
            "{side} {} {time}, cleared at {}",
            level(rule.threshold),
            level(rule.clear.unwrap_or(rule.threshold))
        ),
    };
    let metric = rule.metric.as_str();
    format!("`{name}` ({severity}): `{metric}` {levels}. {}", meaning(about, metric))
}

// Errors.

#[test]
fn reference_of_errors_is_current() {
    let source = "the kinds of failures, `topics/src/outcome.rs` and `src/api/problem_codes.rs`";
    let mut page = Page::new("Exit codes and errors", source, COMMAND);
    exit_codes(&mut page);
    page.heading(2, "Outcomes of commands");
    page.paragraph("How a command ended on one host: `status` of `muster command show ID -o json`, and of the API.");
    page.gap();
    for (name, about) in described(schema_for!(Status).as_value()) {
        page.item(&format!("`{name}`: {about}"));
    }
    page.heading(2, "Reasons of refusals");
    page.paragraph("`code` of an outcome whose status is `refused`.");
    page.gap();
    for (name, about) in described(schema_for!(RefusalCode).as_value()) {
        page.item(&format!("`{name}`: {about}"));
    }
    page.heading(2, "Problems of the API");
    page.paragraph(
        "An answer of the API that is not a success is a problem: `code` for programs; `message`, and perhaps \
         `consequence` and `hint`, for people. In parentheses are the HTTP status and the exit code of the command line.",
    );
    page.gap();
    for &ProblemCode { code, kind, statuses, about } in PROBLEM_CODES {
        let statuses: Vec<String> = statuses.iter().map(u16::to_string).collect();
        let exit = muster_cli::client::failure_kind_of(kind).code();
        page.item(&format!("`{code}` ({}; exit {exit}): {about}", statuses.join(", ")));
    }
    check("exit-codes.md", page);
}

fn exit_codes(page: &mut Page) {
    page.heading(2, "Exit codes");
    page.gap();
    page.item("0: The work is done.");
    // Each kind of failure: the compiler asks for a new one here.
    let about = |kind| match kind {
        FailureKind::Failed => "The work failed.",
        FailureKind::Usage => {
            "What was given is wrong: an argument, a configuration, a file that is missing or cannot be parsed; nothing \
             was done."
        }
        FailureKind::Refused | FailureKind::NotFound => {
            "The console or the host refuses: there is no such thing, the state or the permissions do not allow it, or \
             the sign-in, the join token or the certificate is not accepted."
        }
        FailureKind::Unreachable => "The console, or what it needs, cannot be reached.",
        FailureKind::Code(_) => "of `muster exec --passthrough`: The exit code of the one host's program.",
    };
    use FailureKind::{Code, Failed, Refused, Unreachable, Usage};
    for kind in [Failed, Usage, Refused, Unreachable] {
        page.item(&format!("{}: {}", kind.code(), about(kind)));
    }
    page.item("130: A second signal ended the program before it had shut down.");
    page.item(&format!("Any, {}", about(Code(0))));
}

/// A problem of the console's code: its code and its HTTP status.
fn problems_of_the_source() -> Vec<(String, u16, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let is_tests = ["tests", "samples"].iter().any(|name| path.ends_with(name));
                folders.extend(Some(path).filter(|_| !is_tests));
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let place = path.display().to_string();
                found.extend(problems(code).into_iter().map(|(code, status)| (code, status, place.clone())));
            }
        }
    }
    found
}

/// The problems that a source text makes with a literal code.
fn problems(source: &str) -> Vec<(String, u16)> {
    const CALLS: [(&str, u16); 8] = [
        ("::invalid(", 400),
        ("::told(", 0),
        ("::of(", 0),
        ("::unauthorised(", 401),
        ("::not_found(", 404),
        ("::conflict(", 409),
        ("Error::new(", 0),
        ("Self::new(", 0),
    ];
    let mut found = Vec::new();
    for (call, status) in CALLS {
        for rest in source.split(call).skip(1) {
            let mut rest = rest.trim_start();
            let named = rest.strip_prefix("StatusCode::").and_then(|rest| rest.split_once(','));
            if let Some((_, after)) = named {
                rest = after.trim_start();
            }
            let literal = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
            let is_code = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            match literal {
                Some((code, after)) if after.starts_with(',') && is_code(code) && (named.is_some() || status != 0) => {
                    found.push((code.to_owned(), named.map_or(status, |(name, _)| status_of(name))));
                }
                _ => {}
            }
        }
    }
    found
}

fn status_of(name: &str) -> u16 {
    let known = [
        ("BAD_REQUEST", 400),
        ("UNAUTHORIZED", 401),
        ("FORBIDDEN", 403),
        ("NOT_FOUND", 404),
        ("METHOD_NOT_ALLOWED", 405),
        ("REQUEST_TIMEOUT", 408),
        ("CONFLICT", 409),
        ("PAYLOAD_TOO_LARGE", 413),
        ("UNSUPPORTED_MEDIA_TYPE", 415),
        ("RANGE_NOT_SATISFIABLE", 416),
        ("TOO_MANY_REQUESTS", 429),
        ("INTERNAL_SERVER_ERROR", 500),
        ("SERVICE_UNAVAILABLE", 503),
        ("GATEWAY_TIMEOUT", 504),
        ("INSUFFICIENT_STORAGE", 507),
    ];
    known.iter().find(|(word, _)| *word == name).unwrap_or_else(|| panic!("StatusCode::{name} is new here")).1
}

#[test]
fn reference_has_every_code_of_problems() {
    assert!(PROBLEM_CODES.windows(2).all(|pair| pair[0].code < pair[1].code), "they are sorted");
    let found = problems_of_the_source();
    assert!(found.len() > 100, "{} problems were found in the console's code", found.len());
    for (code, status, place) in &found {
        let row = PROBLEM_CODES.iter().find(|row| row.code == code);
        let is_listed = row.is_some_and(|row| row.statuses.contains(status));
        assert!(is_listed, "{place}: {code:?} with status {status} is not in src/api/problem_codes.rs");
    }
    // Some codes are chosen before the problem is made; those stand in the code as text.
    let text = console_text();
    for row in PROBLEM_CODES {
        assert!(text.contains(&format!("\"{}\"", row.code)), "{}: the console has no such code", row.code);
        for status in row.statuses {
            let is_direct = found.iter().any(|(code, _, _)| code == row.code);
            let is_made = found.iter().any(|(code, made, _)| code == row.code && made == status);
            assert!(is_made || !is_direct, "{}: never with status {status}", row.code);
        }
    }
}

/// All code of the console.
fn console_text() -> String {
    let (mut text, mut folders) = (String::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "rs" && !path.ends_with("tests.rs") => {
                    text.push_str(&fs::read_to_string(&path).unwrap());
                }
                _ => {}
            }
        }
    }
    text
}

#[test]
fn problems_are_found_in_code() {
    let source = "Error::invalid(\"a\", x) Error::new(\n StatusCode::FORBIDDEN,\n \"b_c\",\n y) Error::not_found(code, z) \
                  Error::conflict(\"No code\", z) Self::of(StatusCode::NOT_FOUND, \"d\", &e)";
    let found = problems(source);
    let wanted = [("a", 400), ("d", 404), ("b_c", 403)].map(|(code, status)| (code.to_owned(), status));
    assert_eq!(found, wanted);
}

// Enums and what their schemas say.

/// The name of a value as in JSON.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().unwrap_or_default().to_owned()
}

/// The values of an enum with their descriptions, from its schema.
fn described(schema: &Json) -> Vec<(String, String)> {
    let all = ["oneOf", "anyOf"].iter().find_map(|word| schema[word].as_array()).unwrap();
    let one = |one: &Json| {
        let tag = one["properties"]["status"]["const"].as_str();
        let name = one["const"].as_str().or(tag)?;
        let about = one["description"].as_str().unwrap_or_default().replace("[`", "`").replace("`]", "`");
        Some((name.to_owned(), about))
    };
    all.iter().filter_map(one).collect()
}

fn meaning<'a>(described: &'a [(String, String)], name: &str) -> &'a str {
    described.iter().find(|(known, _)| known == name).map_or("", |(_, about)| about)
}

#[test]
fn reference_of_enums_has_descriptions() {
    let metrics = described(schema_for!(Metric).as_value());
    assert!(Metric::ALL.iter().all(|metric| !meaning(&metrics, metric.as_str()).is_empty()));
    let groups = described(schema_for!(MetricGroup).as_value());
    assert!(MetricGroup::ALL.iter().all(|group| !meaning(&groups, &word(group)).is_empty()));
    let statuses = described(schema_for!(Status).as_value());
    assert!(statuses.len() >= 10 && statuses.iter().all(|(_, about)| !about.is_empty()), "{statuses:?}");
}

#[test]
fn first_command_of_the_readme_parses() {
    use clap::Parser;
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let line = readme.lines().find_map(|line| line.strip_prefix("$ cargo run --release -- ")).unwrap();
    super::Cli::try_parse_from(std::iter::once("muster").chain(line.split(' '))).unwrap();
}
