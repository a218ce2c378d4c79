//! The invariants that a machine can hold, checked on the source text.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clock_uses;
mod documents;
mod file_writes;
mod form;
mod phrases;
mod verb_files;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use muster_topics::catalogue;

/// Every Rust file of ours below `folder` that is not a test, with its text up to its unit tests.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") && !path.ends_with("tests") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
                let end = tests.iter().filter_map(|tests| text.find(tests)).min();
                let code = text[..end.unwrap_or(text.len())].to_owned();
                files.push((path.strip_prefix(root).unwrap().to_owned(), code));
            }
        }
    }
    assert!(!files.is_empty(), "{folder} has no sources");
    files
}

/// The files of code with lines that count, and how much.
fn counted(of_line: fn(&str) -> usize) -> BTreeMap<String, usize> {
    let is_test = |path: &Path| ["testing.rs", "_tests.rs"].iter().any(|end| path.to_string_lossy().ends_with(end));
    let all = ["src", "broker/src", "topics/src"].into_iter().flat_map(sources).filter(|(path, _)| !is_test(path));
    let counted = all.map(|(path, code)| (path.display().to_string(), code.lines().map(of_line).sum()));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// How files differ from the rows of a table, and rows without a file.
fn differences(
    found: &BTreeMap<String, usize>,
    rows: &BTreeMap<String, usize>,
    what: &str,
) -> (Vec<String>, Vec<String>) {
    let differs = found.iter().filter(|(path, count)| rows.get(*path) != Some(*count));
    let wrong = differs.map(|(path, count)| format!("{path}: {count} {what}, and its row says {:?}", rows.get(path)));
    let stale = rows.keys().filter(|path| !found.contains_key(*path));
    (wrong.collect(), stale.cloned().collect())
}

/// Fails with every line below `folder` that holds one of `words`, comments and `except` left out.
#[track_caller]
fn check_absent(why: &str, folder: &str, words: &[&str], except: &[&str]) {
    let mut found = Vec::new();
    for (path, code) in sources(folder) {
        if except.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        for (index, line) in code.lines().enumerate() {
            if !line.trim_start().starts_with("//") && words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{}: {}", path.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{why}:\n{}", found.join("\n"));
}

#[test]
fn rules_and_session_are_pure() {
    const IMPURE: [&str; 10] = [
        "std::fs",
        "std::net",
        "std::env",
        "SystemTime",
        "Instant",
        "clock::",
        "tokio::",
        "sqlx::",
        "rand::",
        "async fn",
    ];
    for part in ["src/rules", "src/session"] {
        check_absent("rules and session do no IO, read no clock and draw no randomness", part, &IMPURE, &[]);
    }
}

#[test]
fn folders_are_removed_without_what_is_mounted_in_them() {
    // The shim knows no other crate; it makes room for its own files alone. Tests remove what they have made.
    let except = ["src/shim/files.rs", "src/agent/bus_tests.rs"];
    for folder in ["src", "broker", "topics"] {
        check_absent("folders are removed by muster_base::mount", folder, &["remove_dir_all"], &except);
    }
}

#[test]
fn folders_of_the_environment_are_read_in_one_place() {
    check_absent(
        "HOME and the XDG variables are read in src/base/folders.rs, where what is not absolute is no path",
        "src",
        &["(\"HOME\")", "(\"XDG_", "home_dir(", "temp_dir("],
        &["src/base/folders.rs"],
    );
}

#[test]
fn locks_and_files_are_private_whatever_the_umask() {
    for folder in ["src", "broker"] {
        check_absent(
            "whoever can open a file can lock it; muster_base::files::take_lock opens lock files that only the owner can",
            folder,
            &["TryLockError", "FlockArg"],
            // The broker's knows no other crate. It opens every file of its folder with the mode of private ones.
            &["src/base/files.rs", "broker/src/retained/folder.rs"],
        );
    }
    for folder in ["src/agent", "src/base", "src/console", "src/series", "src/sqlite", "src/simulate", "broker"] {
        check_absent(
            "the umask decides who may read a file that is created without a mode; muster_base::files writes with one",
            folder,
            &["fs::write(", "File::create(", "File::create_new("],
            &["src/agent/testing.rs", "src/agent/install/plan_tests.rs", "src/agent/store/loss_tests.rs"],
        );
    }
}

#[test]
fn topics_crate_does_no_io() {
    check_absent(
        "muster-topics does no IO",
        "topics/src",
        &["std::fs", "std::net", "std::env", "tokio", "SystemTime", "Instant"],
        &["topics/src/bin"],
    );
}

#[test]
fn lines_about_peers_pass_the_limiter() {
    let mut found = Vec::new();
    for folder in ["broker/src", "src/console"] {
        for (path, code) in sources(folder) {
            let meets_peers = ["broker/src", "src/console/ingest", "src/console/server.rs", "src/console/enrol.rs"];
            if !meets_peers.iter().any(|part| path.starts_with(part)) {
                continue;
            }
            for word in ["tracing::info!(", "tracing::warn!("] {
                let lines = code.split(word).skip(1).filter_map(|rest| rest.split(';').next());
                let about = ["peer", "client.id", "host.id", "certificate.serial"];
                let unlimited = lines.filter(|line| about.iter().any(|peer| line.contains(peer)));
                found.extend(unlimited.map(|line| format!("{}: {word}{line}", path.display())));
            }
        }
    }
    assert!(
        found.is_empty(),
        "whoever can reach a listener can fill the log; say it with log_peer!:\n{}",
        found.join("\n")
    );
}

#[test]
fn dashboards_are_made_without_io() {
    check_absent(
        "dashboards are made of one list, without IO",
        "dashboards/src",
        &["std::fs", "std::net", "std::env", "tokio", "SystemTime", "Instant"],
        &[],
    );
}

#[test]
fn topics_are_formatted_in_one_place() {
    for folder in ["src", "broker/src"] {
        check_absent(
            "topics are formatted and parsed in topics/src/topic.rs alone",
            folder,
            &["\"h/", "\"s/", "\"cmd/", "/presence\"", "/heartbeat\"", "/outcome\""],
            // It has a path of HTTP with such a name.
            &["src/agent/local.rs"],
        );
    }
}

/// Every word of `text` that begins with the name of a group of measurements.
fn series_words(text: &str) -> Vec<&str> {
    const GROUPS: [&str; 8] = ["host_", "unit_", "container_", "agent_", "alert_", "yuno_", "console_", "fleet_"];
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let is_series = |word: &&str| {
        word.strip_prefix("muster_").is_some_and(|rest| GROUPS.iter().any(|group| rest.starts_with(group)))
    };
    words.filter(is_series).collect()
}

/// Whether a word is a measurement, a series, or the beginning of some.
fn is_in_catalogue(word: &str) -> bool {
    let is_begin = |name: &str| word.ends_with('_') && name.starts_with(word);
    catalogue::series(word).is_some()
        || word.starts_with("muster_yuno_")
        || catalogue::MEASUREMENTS.iter().any(|one| {
            word == one.name
                || is_begin(one.name)
                || one.fields.iter().any(|field| is_begin(&format!("{}_{}", one.name, field.name)))
        })
}

#[test]
fn metrics_in_the_text_are_in_the_catalogue() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<(PathBuf, String)> =
        ["src", "dashboards/src", "benches", "tests"].into_iter().flat_map(sources).collect();
    for path in ["dashboards/README.md", "dashboards/rules/alerts.yml", "dashboards/rules/recording.yml"] {
        files.push((path.into(), fs::read_to_string(root.join(path)).unwrap()));
    }
    files.extend(documents::all().into_iter().map(|document| (document.path.into(), document.text)));
    let words = files.iter().flat_map(|(path, text)| series_words(text).into_iter().map(move |word| (path, word)));
    let unlisted: Vec<String> = words
        .filter(|(_, word)| !is_in_catalogue(word))
        .map(|(path, word)| format!("{}: {word}", path.display()))
        .collect();
    assert!(unlisted.is_empty(), "not in topics/src/catalogue.rs:\n{}", unlisted.join("\n"));
}

#[test]
fn metrics_of_the_catalogue_are_measured() {
    let reads = ["src/console/web", "src/console/latest_measurements.rs"];
    let text = |folder: &str| -> String {
        let files = sources(folder).into_iter().filter(|(path, _)| !reads.iter().any(|part| path.starts_with(part)));
        files.map(|(_, code)| code).collect()
    };
    let (agent, console) = (text("src/agent/metric"), text("src/console"));
    for one in catalogue::MEASUREMENTS {
        for field in one.fields {
            let written = if field.writing.group().is_some() { &agent } else { &console };
            let is_written = |name: &str| written.contains(&format!("\"{name}\""));
            assert!(is_written(one.name) && is_written(field.name), "nothing measures {} {}", one.name, field.name);
        }
    }
}

/// What each part may know of the others; cargo holds it, and this says when a line is added.
const WALLS: [(&str, &[&str]); 22] = [
    ("topics", &[]),
    ("src/fault", &[]),
    ("src/rules", &["fault", "topics"]),
    ("src/session", &["fault", "rules", "topics"]),
    ("src/base", &["rules", "topics"]),
    ("src/backup", &["base", "rules", "topics"]),
    ("src/net", &[]),
    ("src/bus", &["topics"]),
    ("src/sqlite", &["base"]),
    ("src/guard", &[]),
    ("src/promql", &[]),
    ("src/series", &["promql", "sqlite", "topics"]),
    ("src/shim", &[]),
    ("src/yuno", &[]),
    ("src/api", &["rules", "topics"]),
    ("src/agent", &["base", "bus", "fault", "net", "rules", "session", "shim", "sqlite", "topics"]),
    (
        "src/console",
        &["api", "backup", "base", "bus", "fault", "guard", "net", "promql", "rules", "series", "sqlite", "topics"],
    ),
    ("src/cli", &["api", "backup", "base", "dashboards", "net", "rules", "topics"]),
    ("src/doctor", &["base", "bus", "net", "rules", "topics"]),
    ("broker", &["guard", "topics"]),
    ("dashboards", &["topics"]),
    ("src/simulate", &["agent", "api", "base", "cli", "rules", "session", "sqlite", "topics"]),
];

#[test]
fn crates_depend_only_on_allowed_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (part, allowed) in WALLS {
        let manifest = fs::read_to_string(root.join(part).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default().split("\n[").next().unwrap();
        let knows: Vec<&str> =
            dependencies.lines().filter_map(|line| line.strip_prefix("muster-")?.split(['.', ' ']).next()).collect();
        assert_eq!(knows, allowed, "{part}/Cargo.toml");
    }
}

#[test]
fn features_are_used_only_in_the_root_package() {
    check_absent(
        "features are asked for where the parts are put together",
        "src",
        &["cfg(feature", "cfg(any(feature", "cfg(all(feature", "cfg(not(feature"],
        // Faults that are planted, a clock and a chance that are pretended: only tests have them.
        &[
            "src/main.rs",
            "src/help.rs",
            "src/help",
            "src/role.rs",
            "src/role",
            "src/up.rs",
            "src/fault",
            "src/base/clock.rs",
            "src/base/chance.rs",
        ],
    );
}

#[test]
fn the_agent_commits_in_one_place() {
    check_absent(
        "transactions of the agent end in store::commit, where tests can have it killed",
        "src/agent",
        &[".commit()", "execute(&store.pool)", "execute(&self.pool)"],
        &["src/agent/store/mod.rs"],
    );
}

/// Whether a comment that begins with `Unchecked:` ends right above a line.
fn says_why_unchecked(lines: &[&str], index: usize) -> bool {
    let above = lines[..index].iter().rev().map(|line| line.trim_start());
    above.take_while(|line| line.starts_with("//")).any(|line| line.starts_with("// Unchecked: "))
}

#[test]
fn sql_of_the_console_is_checked_or_says_why_not() {
    const UNCHECKED: [&str; 9] = [
        "sqlx::query(",
        "query_as(",
        "query_as::<",
        "query_scalar(",
        "query_scalar::<",
        "query_with(",
        "QueryBuilder",
        "raw_sql",
        "AssertSqlSafe(",
    ];
    let mut found = Vec::new();
    for (path, code) in sources("src/console") {
        let lines: Vec<&str> = code.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            // What concerns the file, and no table.
            let is_of_file = line.contains("\"PRAGMA ") || line.contains("\"VACUUM\"");
            let is_comment = line.trim_start().starts_with("//");
            let is_unchecked = UNCHECKED.iter().any(|word| line.contains(word)) && !is_comment && !is_of_file;
            if is_unchecked && !says_why_unchecked(&lines, index) {
                found.push(format!("{}:{}: {}", path.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(
        found.is_empty(),
        "a statement is one of sqlx's macros, or a comment above it shows why not (`// Unchecked: …`):\n{}",
        found.join("\n")
    );
}

#[test]
fn http_clients_are_built_in_one_place() {
    check_absent(
        "HTTP clients are built in src/net/http.rs, where no environment says through which proxy they go",
        "src",
        &[
            "Client::builder()",
            "ClientBuilder::new",
            "reqwest::Client::new",
            "reqwest::get(",
            "blocking::",
            "old_reqwest::",
        ],
        // That of the crate influxdb2 is of an older library, and made by the same rules.
        &["src/net/http.rs", "src/console/external/remote/influxdb2.rs"],
    );
}

#[test]
fn printing_is_in_one_place() {
    check_absent(
        "standard output and standard error are written in src/base/terminal.rs, which shows a terminal nothing that it would obey",
        "src",
        &[
            "stdout().lock()",
            "stderr().lock()",
            // Whoever is given one to write to panics, or tells in his own way, where nobody reads.
            "mut std::io::stdout()",
            "mut std::io::stderr()",
            "mut io::stdout()",
            "mut io::stderr()",
            "stdout().write",
            "stderr().write",
            "println!(",
            "print!(",
            "with_writer(std::io::stderr)",
        ],
        // What draws its own screen; programs of their own, and what cargo reads.
        &[
            "src/base/terminal.rs",
            "src/cli/top/terminal.rs",
            "src/shim",
            "src/agent/build.rs",
            "src/console/build.rs",
            "src/series",
            "src/promql",
            "src/agent/metric/sample.rs",
        ],
    );
}

/// The string literals of a text, with the number of the line on which each begins.
fn literals(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = rest.chars().next().map_or(1, char::len_utf8);
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let end = raw.find("\"#").unwrap_or(raw.len());
            found.push((text[..at].lines().count(), &raw[..end]));
            at += "r#\"".len() + end + "\"#".len();
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            at += 3;
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let mut escaped = false;
            let is_end = |letter: char| {
                let is_end = letter == '"' && !escaped;
                escaped = letter == '\\' && !escaped;
                is_end
            };
            let end = quoted.find(is_end).unwrap_or(quoted.len());
            found.push((text[..at].lines().count(), &quoted[..end]));
            at += end + 2;
        } else {
            at += length;
        }
    }
    found
}

#[test]
fn hints_and_consequences_are_fields() {
    let marks = ["hint: ", "consequence: "];
    let is_text = |literal: &str| marks.iter().any(|mark| literal.contains(mark));
    let mut found = Vec::new();
    for folder in ["src", "broker/src", "topics/src", "dashboards"] {
        for (path, code) in sources(folder).into_iter().filter(|(path, _)| !path.ends_with("diagnostic.rs")) {
            let texts = literals(&code).into_iter().filter(|(_, literal)| is_text(literal));
            found.extend(texts.map(|(line, literal)| format!("{}:{line}: {literal}", path.display())));
        }
    }
    assert!(found.is_empty(), "`Diagnostic` has a field for each, and alone writes these words:\n{}", found.join("\n"));
    let code =
        "a(\"no \\\"room\\\". hint: x\"); // \"hint: no\"\n let hint: &str = r#\"consequence: y\"#; b('\"', \"z\")";
    let read: Vec<_> = literals(code).into_iter().map(|(_, literal)| is_text(literal)).collect();
    assert_eq!(read, [true, true, false]);
}

/// The calls of log macros in a text.
fn log_calls(text: &str) -> Vec<&str> {
    let starts = text.match_indices("tracing::").filter(|(at, word)| {
        let name = &text[at + word.len()..];
        ["error!(", "warn!(", "info!(", "debug!("].iter().any(|macro_name| name.starts_with(macro_name))
    });
    // A call ends with its statement, or with its arm.
    let call = |(at, _)| {
        let rest: &str = &text[at..];
        &rest[..rest.find(");").into_iter().chain(rest.find("),\n")).min().unwrap_or(rest.len())]
    };
    starts.map(call).collect()
}

#[test]
fn hints_of_logs_are_fields() {
    for folder in ["src", "broker/src"] {
        for (path, text) in sources(folder) {
            for call in log_calls(&text) {
                assert!(!call.contains("hint: "), "{}: `hint` is a field of its own: {call}", path.display());
            }
        }
    }
    assert_eq!(log_calls("{ tracing::warn!(hint = \"a\", \"b\"); tracing::debug!(\"c. hint: d\"); }").len(), 2);
}

#[test]
fn exit_codes_are_chosen_in_main() {
    check_absent("only main ends the process", "src", &["process::exit"], &["src/main.rs", "src/shim"]);
}

#[test]
fn no_todo_or_dbg_is_left() {
    for folder in ["src", "broker/src", "topics/src"] {
        check_absent("nothing is left open", folder, &["todo!(", "unimplemented!(", "FIXME", "TODO", "XXX"], &[]);
    }
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    check_absent(
        "unsafe code stands in few places, each with its safety argument",
        "src",
        &["unsafe {", "unsafe fn", "unsafe impl"],
        &[
            "src/shim",
            "src/base/memory_release.rs",
            "src/agent/metric/time.rs",
            "src/agent/unit/container/lxc/process.rs",
        ],
    );
    for folder in ["broker/src", "topics/src"] {
        check_absent("no unsafe code is needed here", folder, &["unsafe {", "unsafe fn", "unsafe impl"], &[]);
    }
}
