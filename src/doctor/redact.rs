//! Takes secrets out of texts: configurations by their structure, logs by the shape of words, both by the secrets that are
//! known.

use muster_rules::mask::{Cut, SecretMask, is_secret_key};
use muster_topics::unit::MASK as HIDDEN;

/// The shortest word that counts as random.
const RANDOM_MIN: usize = 20;

/// A configuration without its secrets: what is no TOML has no structure, and is left out. Comments go, too.
#[must_use]
pub fn toml(text: &str, secrets: &[String]) -> Option<String> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    table.iter_mut().for_each(|(key, value)| hide_in(key, value));
    Some(hide_known(&toml::to_string_pretty(&table).ok()?, secrets))
}

fn hide_in(key: &str, value: &mut toml::Value) {
    match value {
        toml::Value::Table(table) => table.iter_mut().for_each(|(key, value)| hide_in(key, value)),
        toml::Value::Array(all) if key.ends_with("command") => {
            // A program's arguments may be anything.
            all.iter_mut().skip(1).for_each(|one| *one = toml::Value::String(HIDDEN.to_owned()));
        }
        toml::Value::Array(all) => all.iter_mut().for_each(|one| hide_in(key, one)),
        toml::Value::String(text) if is_secret_key(key) && !text.starts_with('/') => HIDDEN.clone_into(text),
        toml::Value::String(text) => *text = word_or_url(text),
        _ => {}
    }
}

fn word_or_url(text: &str) -> String {
    if text.contains("-----BEGIN") { HIDDEN.to_owned() } else { line(text) }
}

/// All texts of a TOML document at secret keys: to be hidden wherever else they stand.
#[must_use]
pub fn secrets_of_toml(text: &str) -> Vec<String> {
    fn collect(key: &str, value: &toml::Value, into: &mut Vec<String>) {
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(key, value)| collect(key, value, into)),
            toml::Value::Array(all) => all.iter().for_each(|one| collect(key, one, into)),
            toml::Value::String(text) if is_secret_key(key) && !text.starts_with('/') => into.push(text.clone()),
            _ => {}
        }
    }
    let mut all = Vec::new();
    if let Ok(table) = toml::from_str::<toml::Table>(text) {
        table.iter().for_each(|(key, value)| collect(key, value, &mut all));
    }
    all
}

/// The lines of a file that holds nothing but secrets.
#[must_use]
pub fn secrets_of_lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    lines.map(str::to_owned).collect()
}

/// A text, such as a log or a message, without secrets.
#[must_use]
pub fn text(text: &str, secrets: &[String]) -> String {
    let known = hide_known(text, secrets);
    let mut all = String::with_capacity(known.len());
    let mut in_pem = false;
    for one in known.split_inclusive('\n') {
        let (begins, ends) = (one.contains("-----BEGIN"), one.contains("-----END"));
        match (in_pem || begins, ends) {
            (true, _) => {
                if begins {
                    all.push_str(HIDDEN);
                    all.push('\n');
                }
                in_pem = !ends;
            }
            (false, _) => all.push_str(&line(one)),
        }
    }
    all
}

fn hide_known(text: &str, secrets: &[String]) -> String {
    SecretMask::of(secrets.iter().map(String::as_str)).text(text, Cut::NONE)
}

/// One line without what looks like a secret.
fn line(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'`<>(){}[],;".contains(c);
    let mut all = String::with_capacity(text.len());
    // Whether the word before says that this one is a secret.
    let mut is_announced = false;
    for piece in text.split_inclusive(is_end) {
        let end = piece.chars().next_back().filter(|c| is_end(*c)).map_or(0, char::len_utf8);
        let (word, end) = piece.split_at(piece.len() - end);
        if word.is_empty() {
            all.push_str(piece);
            continue;
        }
        let (shown, announces) = if is_announced { (HIDDEN.to_owned(), false) } else { hide_word(word) };
        // `Authorization: Bearer X`: what follows the scheme.
        is_announced = announces || (is_announced && word.eq_ignore_ascii_case("bearer"));
        all.push_str(&shown);
        all.push_str(end);
    }
    all
}

/// A word as it may be shown, and whether it says that the next one is a secret.
fn hide_word(word: &str) -> (String, bool) {
    if word.eq_ignore_ascii_case("bearer") || word == "-p" || word == "--password" {
        return (word.to_owned(), true);
    }
    if let Some((scheme, rest)) = word.split_once("://") {
        return (format!("{scheme}://{}", hide_in_url(rest)), false);
    }
    if let Some(at) = word.find(['=', ':']).filter(|at| *at > 0) {
        let (key, value) = word.split_at(at);
        if is_secret_key(key.rsplit(['.', '&', '?']).next().unwrap_or(key)) {
            let sign = &value[..1];
            return if value.len() == 1 { (word.to_owned(), true) } else { (format!("{key}{sign}{HIDDEN}"), false) };
        }
        if let Some(value) = value.strip_prefix('=') {
            return (format!("{key}={}", hide_word(value).0), false);
        }
    }
    let is_secret = word.starts_with("muster1.") || is_random(word);
    (if is_secret { HIDDEN.to_owned() } else { word.to_owned() }, false)
}

/// A URL after its scheme: host and port stay, and a path that does not look random.
fn hide_in_url(rest: &str) -> String {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}"),
        None => authority.to_owned(),
    };
    let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
    let hidden = |level: &str| if is_opaque(level) { HIDDEN.to_owned() } else { level.to_owned() };
    let path = path.split('/').map(hidden).collect::<Vec<_>>().join("/");
    let query = if query.is_empty() { String::new() } else { format!("?{HIDDEN}") };
    format!("{authority}{path}{query}")
}

/// Whether a part of a URL's path may be a secret, as webhooks have them.
fn is_opaque(level: &str) -> bool {
    level.len() >= 8 && level.bytes().any(|b| b.is_ascii_digit()) && level.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Whether a word looks like a key or token: long, of letters and digits, and neither a path, a name nor an id.
fn is_random(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':', '=']);
    let is_of_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/_-=".contains(&b);
    if word.len() < RANDOM_MIN || !word.bytes().all(is_of_base64) || word.starts_with('/') || is_uuid(word) {
        return false;
    }
    let has = |test: fn(&u8) -> bool| word.as_bytes().iter().any(test);
    let (digit, lower, upper) = (has(u8::is_ascii_digit), has(u8::is_ascii_lowercase), has(u8::is_ascii_uppercase));
    let is_hex = word.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex || (digit && lower && upper) || (lower && upper && !word.contains(['/', '-', '_']))
}

fn is_uuid(word: &str) -> bool {
    word.len() == 36
        && word.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, wanted: &str) {
        assert_eq!(text(given, &[]), wanted);
    }

    #[test]
    fn secrets_are_hidden_by_their_shape() {
        check("join = \"muster1.aHR0cHM6Ly8xMjcuMC4wLjE.ab\"\n", "join = \"***\"\n");
        check("token=abc123 password: hunter2 rest\n", "token=*** password: *** rest\n");
        check("Authorization: Bearer abcdef\n", "Authorization: *** ***\n");
        check("https://anna:hunter2@proxy:3128/", "https://***@proxy:3128/");
        check("http://127.0.0.1:7080/sign-in?code=abc", "http://127.0.0.1:7080/sign-in?***");
        check(
            "https://hooks.example/services/T0001/B1234567/abcd1234efgh",
            "https://hooks.example/services/T0001/***/***",
        );
        check("x -----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\ny\n", "***\ny\n");
        check("key Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5 end", "key *** end");
    }

    #[test]
    fn ordinary_words_stay() {
        for line in [
            "2026-11-27T06:00:00Z INFO host.id=0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52 connected\n",
            "/var/lib/muster/agent/units/default/shop/run\n",
            "cannot reach mqtts://127.0.0.1:8883: Connection refused (os error 111)\n",
            "muster-agent.service: Deactivated successfully.\n",
        ] {
            check(line, line);
        }
    }

    #[test]
    fn known_secrets_are_hidden_everywhere() {
        let secrets = ["hunter2!".to_owned(), "hunter2!extra".to_owned(), "ab".to_owned()];
        assert_eq!(text("a hunter2!extra b /x/hunter2! ab\n", &secrets), "a *** b /x/*** ab\n");
    }

    #[test]
    fn configuration_is_redacted_by_structure() {
        let given = "# join = \"muster1.x\"\njoin = \"muster1.abc\"\nrevocation_command = [\"/bin/x\", \"--pass\"]\n\
                     secret_file = \"/etc/token\"\n[[alert_outlets]]\nurl = \"https://u:p@h/abcd1234/x\"\nproxy = \"http://a:b@c\"\n";
        let shown = toml(given, &[]).unwrap();
        for secret in ["muster1", "--pass", "u:p", "abcd1234", "a:b"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        for kept in ["/bin/x", "/etc/token", "https://***@h/***/x"] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        assert_eq!(toml("join = \"muster1", &[]), None);
        assert_eq!(secrets_of_toml(given), ["muster1.abc"]);
    }
}
