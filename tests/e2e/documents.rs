//! What the documents tell people to type is typed: every line of their `console` blocks is run, in order, in a home of the
//! test's own beside a `muster up`. What stands before a block in an HTML comment says otherwise:
//!
//! - `<!-- not run: REASON -->`: a test cannot run it.
//! - `<!-- run on: NAME -->`: it is for another host, which has this name; its last command goes on.
//!
//! `$ cat FILE` with lines below it shows a file that a reader makes, so the test makes it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    channel::rust_sample,
    fleet::{Fleet, Home, Run, Running, eventually, muster},
};

/// What people read besides README and the pages below `docs`. Decisions are dated records, and not among it.
const OTHER_DOCUMENTS: [&str; 5] = [
    "dashboards/README.md",
    "broker/README.md",
    "broker/configs/README.md",
    "broker/CONFORMANCE.md",
    "topics/CHANNEL.md",
];

/// What begins like a command and is none: a message of the broker's.
const OTHERS: [&str; 1] = ["muster version 0.1.0"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The paths of all documents, in the order in which people read them: the pages below `docs` as their index has them,
/// which a tidy test holds complete.
fn documents() -> Vec<String> {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    let targets = index.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let pages = targets.filter(|target| target.ends_with(".md") && !target.starts_with("../"));
    let mut documents = vec!["README.md".to_owned(), "docs/README.md".to_owned()];
    for page in pages.map(|page| format!("docs/{page}")) {
        if !documents.contains(&page) {
            documents.push(page);
        }
    }
    documents.extend(OTHER_DOCUMENTS.map(str::to_owned));
    documents
}

/// A fenced block.
#[derive(Debug, PartialEq)]
struct Block {
    /// Where it is, for messages.
    place: String,
    language: String,
    /// What a comment before it says.
    marker: Option<String>,
    lines: Vec<String>,
}

/// The fenced blocks of a document.
fn blocks(name: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut open, mut marker) = (None::<Block>, None);
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => {
                let (place, language) = (format!("{name}:{}", index + 1), language.trim().to_owned());
                open = Some(Block { place, language, marker: marker.take(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, None) => {
                let comment = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
                marker = comment.map(|words| words.trim().to_owned());
            }
        }
    }
    assert_eq!(open, None, "{name}: a block without an end");
    blocks
}

/// What is to be done with a block.
#[derive(Debug, PartialEq)]
enum Use<'a> {
    /// Its commands are run.
    Run { host: Option<&'a str> },
    /// It has none, or none that can be run.
    Pass,
}

/// Says what a block is for, or what is wrong with it.
fn purpose(block: &Block) -> Result<Use<'_>, String> {
    let has_commands = block.lines.iter().any(|line| line.starts_with("$ "));
    match (block.language.as_str(), block.marker.as_deref()) {
        ("console", None) if has_commands => Ok(Use::Run { host: None }),
        ("console", Some(marker)) if has_commands => match marker.split_once(':') {
            Some(("run on", host)) => Ok(Use::Run { host: Some(host.trim()) }),
            Some(("not run", reason)) if reason.split_whitespace().count() >= 3 => Ok(Use::Pass),
            _ => Err(format!("the comment {marker:?} says neither `not run: REASON` nor `run on: NAME`")),
        },
        ("console", _) => Err("a `console` block without a line that begins with `$ `".to_owned()),
        ("text" | "json" | "toml" | "yaml", _) if !has_commands => Ok(Use::Pass),
        (language, _) => Err(format!("{language:?}: commands stand in `console` blocks, each after `$ `")),
    }
}

/// A command, and what is shown below it. A backslash at the end of its line has it go on in the next one.
fn commands(block: &Block) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (_, Some((command, _))) if command.ends_with('\\') => {
                command.pop();
                command.push_str(line.trim_start());
            }
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, shown))) => {
                let _ = writeln!(shown, "{line}");
            }
            (None, None) => {}
        }
    }
    commands
}

/// The file whose content is shown below a command.
fn shown_file(command: &str) -> Option<&str> {
    command.strip_prefix("cat ").map(str::trim).filter(|name| !name.contains([' ', '|', '>', '#', '/']))
}

/// What goes on on another host.
struct OtherHost {
    name: String,
    line: String,
    running: Running,
}

/// Where the lines are run.
struct Sandbox {
    fleet: Fleet,
    others: Vec<OtherHost>,
}

impl Sandbox {
    fn new() -> Self {
        let fleet = Fleet::start_with(&[]);
        let home = fleet.home.path();
        for folder in ["bin", "target/release/examples"] {
            fs::create_dir_all(home.join(folder)).unwrap();
        }
        symlink(muster(), home.join("bin/muster")).unwrap();
        symlink(muster(), home.join("target/release/muster")).unwrap();
        symlink(rust_sample(), home.join("target/release/examples/yuno")).unwrap();
        symlink(root().join("examples"), home.join("examples")).unwrap();
        Self { fleet, others: Vec::new() }
    }

    fn dress(&self, command: &mut Command) {
        let home = &self.fleet.home;
        home.dress(command);
        let usual = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{usual}", home.path().join("bin").display()));
    }

    /// Runs a line on this host to its end.
    fn run(&self, line: &str) -> Run {
        let mut command = Command::new("bash");
        self.dress(&mut command);
        Run::of(&[line], command.args(["-c", line]))
    }

    /// Begins a line on another host, which has folders of its own.
    fn begin(&mut self, host: &str, line: &str) {
        let mut command = Command::new("unshare");
        self.dress(&mut command);
        let folder = self.fleet.home.path().join(host);
        let script = "hostname \"$0\" && exec bash -c \"exec $1\"";
        command.env("XDG_CONFIG_HOME", folder.join("config")).env("XDG_DATA_HOME", folder.join("share"));
        command.args(["--uts", "sh", "-c", script, host, line]);
        let running = Running::start(&mut command);
        self.others.push(OtherHost { name: host.to_owned(), line: line.to_owned(), running });
        eventually("the other host", || {
            let hosts = self.fleet.json(&["host", "ls"]);
            let is_online = |one: &serde_json::Value| one["hostname"] == host && one["presence"]["state"] == "online";
            if hosts.as_array().unwrap().iter().any(is_online) { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    /// Runs a block; what fails is said.
    fn run_block(&mut self, block: &Block, host: Option<&str>) -> Result<(), String> {
        for (line, shown) in commands(block) {
            let line = line.as_str();
            if let Some(name) = shown_file(line).filter(|_| !shown.is_empty()) {
                let path = self.fleet.home.path().join(name);
                fs::write(&path, &shown).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            if let Some(host) = host {
                self.begin(host, line);
                continue;
            }
            let run = self.run(line);
            // The agent of a host that is revoked ends.
            self.others.retain(|other| !line.contains(&format!("host revoke {}", other.name)));
            if run.code != 0 {
                return Err(format!("`{line}` ended with {}: {}{}", run.code, run.stdout, run.stderr));
            }
        }
        Ok(())
    }
}

#[test]
fn every_console_line_of_the_documents_works() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give another host its name");
        return;
    }
    let mut sandbox = Sandbox::new();
    let mut wrong = Vec::new();
    let mut runs = 0;
    for name in documents() {
        for block in blocks(&name, &fs::read_to_string(root().join(&name)).unwrap()) {
            let done = purpose(&block).and_then(|purpose| match purpose {
                Use::Run { host } => {
                    runs += 1;
                    sandbox.run_block(&block, host)
                }
                Use::Pass => Ok(()),
            });
            wrong.extend(done.err().map(|problem| format!("{}: {problem}", block.place)));
        }
    }
    for other in &mut sandbox.others {
        assert!(!other.running.ended(), "`{}` goes on: {}", other.line, other.running.printed());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(runs >= 30, "{runs} blocks");
    // What the documents leave running.
    sandbox.fleet.ok(&["yuno", "stop", "--all", "--yes"]);
}

/// What `muster VERB… --help` says.
struct Help {
    text: String,
    verbs: Vec<String>,
}

fn help(home: &Home, known: &mut BTreeMap<Vec<String>, Help>, verb: &[String]) -> Result<(), String> {
    if !known.contains_key(verb) {
        // All verbs of the program stand in groups.
        let is_program = verb.is_empty();
        let words = verb.iter().map(String::as_str).chain(["--help"]);
        let args: Vec<&str> = if is_program { vec!["help", "--all"] } else { words.collect() };
        let run = home.muster(&args);
        if run.code != 0 {
            return Err(run.stderr);
        }
        let (begin, end) = if is_program { ("Run things:", "Everywhere:") } else { ("Commands:", "") };
        let lines = run.stdout.lines().skip_while(|line| *line != begin).take_while(|line| *line != end);
        let rows = lines.filter(|line| line.starts_with("  "));
        let verbs = rows.filter(|line| !line.starts_with("    ")).filter_map(|line| line.split_whitespace().next());
        let mut verbs: Vec<String> = verbs.map(str::to_owned).collect();
        // Aliases stand beside what they are of, as `[aliases: list]`.
        let aliases = run.stdout.split("[aliases: ").skip(1).filter_map(|rest| rest.split(']').next());
        verbs.extend(aliases.flat_map(|names| names.split(", ").map(str::to_owned)));
        known.insert(verb.to_vec(), Help { text: run.stdout, verbs });
    }
    Ok(())
}

/// Whether there are the verbs and options that a text in backquotes names.
fn check_span(home: &Home, known: &mut BTreeMap<Vec<String>, Help>, span: &str) -> Result<(), String> {
    let own = span.split(" -- ").next().unwrap_or_default();
    let mut words = own.split_whitespace().skip(1).peekable();
    let mut verb = Vec::new();
    help(home, known, &verb)?;
    while let Some(word) = words.peek() {
        // `agent|console|broker` are several.
        let names: Vec<&str> = word.split('|').collect();
        let is_name =
            |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !name.starts_with('-');
        let verbs = &known[&verb].verbs;
        if verbs.is_empty() || !names.iter().all(is_name) {
            break;
        }
        if let Some(missing) = names.iter().find(|name| !verbs.iter().any(|verb| verb == *name)) {
            return Err(format!("there is no verb {missing:?}; there are {}", verbs.join(", ")));
        }
        verb.push(names[0].to_owned());
        words.next();
        help(home, known, &verb)?;
    }
    let letters = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    for option in words.filter_map(|word| word.trim_start_matches(['[', '(']).strip_prefix("--")) {
        let name: String = option.chars().take_while(|letter| letters(*letter)).collect();
        let is_there = known[&verb].text.split(|letter| !letters(letter)).any(|word| word == format!("--{name}"));
        if !is_there && !matches!(name.as_str(), "help" | "version" | "") {
            return Err(format!("there is no option --{name}"));
        }
    }
    Ok(())
}

/// What stands in backquotes outside of blocks, with the line where its paragraph begins: it may go on in the next line.
fn code_spans(text: &str) -> Vec<(usize, String)> {
    let (mut spans, mut is_fenced, mut paragraph, mut begin) = (Vec::new(), false, String::new(), 1);
    for (index, line) in text.lines().chain([""]).enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence || is_fenced || line.trim().is_empty() {
            spans.extend(paragraph.split('`').skip(1).step_by(2).map(|span| (begin, span.to_owned())));
            paragraph.clear();
            begin = index + 2;
        } else {
            paragraph.push_str(line.trim());
            paragraph.push(' ');
        }
    }
    spans
}

#[test]
fn documented_verbs_and_options_exist() {
    let home = Home::new();
    let (mut known, mut wrong, mut spans) = (BTreeMap::new(), Vec::new(), 0);
    for name in documents() {
        let text = fs::read_to_string(root().join(&name)).unwrap();
        for (line, span) in code_spans(&text) {
            if span.starts_with("muster ") && !OTHERS.contains(&span.as_str()) {
                spans += 1;
                let problem = check_span(&home, &mut known, &span).err();
                wrong.extend(problem.map(|problem| format!("{name}:{line}: `{span}`: {problem}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(spans >= 100, "{spans} of them");
}

#[test]
fn documented_configurations_are_accepted() {
    let home = Home::new();
    let mut taken = 0;
    for name in documents() {
        for block in blocks(&name, &fs::read_to_string(root().join(&name)).unwrap()) {
            let path: PathBuf = home.path().join("role.toml");
            fs::write(&path, block.lines.join("\n")).unwrap();
            let print = |role: &str| home.muster(&[role, "--print-config", "--config", path.to_str().unwrap()]);
            match block.language.as_str() {
                "toml" => {
                    let tried: Vec<Run> = ["agent", "console", "broker"].map(print).into_iter().collect();
                    assert!(tried.iter().any(|run| run.code == 0), "{}: {tried:?}", block.place);
                    taken += 1;
                }
                "json" => {
                    let text = block.lines.join("\n");
                    let is_json = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
                    assert!(is_json(&text) || text.lines().all(is_json), "{}: {text}", block.place);
                }
                _ => {}
            }
        }
    }
    assert!(taken > 0);
}

#[test]
fn code_of_paragraphs_is_found() {
    let text = "a `b\nc` d\n\n```text\n`e`\n```\n- `f`\n";
    assert_eq!(code_spans(text), [(1, "b c".to_owned()), (7, "f".to_owned())]);
}

#[test]
fn unmarked_block_is_refused() {
    let check = |text: &str| -> Vec<String> {
        let found = blocks("A.md", text);
        found.iter().map(|block| format!("{} {:?}", block.place, purpose(block))).collect()
    };
    let text = "a\n```console\n$ muster host ls\n```\n<!-- not run: it takes a year -->\n```console\n$ wait\n```\n<!-- run on: b -->\n\
                ```console\n$ c\n```\n";
    assert_eq!(
        check(text),
        ["A.md:2 Ok(Run { host: None })", "A.md:6 Ok(Pass)", "A.md:10 Ok(Run { host: Some(\"b\") })"]
    );
    for wrong in [
        "```sh\nmuster host ls\n```\n",
        "```\n$ muster host ls\n```\n",
        "```text\n$ muster host ls\n```\n",
        "```console\nmuster host ls\n```\n",
        "<!-- not run: no -->\n```console\n$ muster host ls\n```\n",
        "<!-- skip -->\n```console\n$ muster host ls\n```\n",
    ] {
        assert!(check(wrong)[0].contains("Err("), "{wrong}");
    }
    // A comment elsewhere is of no block.
    assert!(check("<!-- not run: it takes a year -->\n\n```console\n$ a\n```\n")[0].contains("Run"));
    let block = &blocks("A.md", "```console\n$ cat a\n1\n2\n$ b # c\nshown\n$ d \\\n    e\n```\n")[0];
    let wanted = [("cat a", "1\n2\n"), ("b # c", "shown\n"), ("d e", "")];
    assert_eq!(commands(block), wanted.map(|(command, shown)| (command.to_owned(), shown.to_owned())));
    assert_eq!((shown_file("cat a"), shown_file("cat a b"), shown_file("b")), (Some("a"), None, None));
}
