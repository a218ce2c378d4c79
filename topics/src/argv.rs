//! Programs and their arguments as one line of text.

/// Joins a program and its arguments into a readable text which `muster_base::argv::split` splits into the same words again.
#[must_use]
pub fn join(argv: &[String]) -> String {
    if argv.iter().any(|word| word.contains('\n')) {
        // Elsewhere each word may be on a line of its own, which would cut this one; in quotes it stays readable.
        return argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    }
    argv.iter().map(|word| if is_plain(word) { word.clone() } else { quoted(word) }).collect::<Vec<_>>().join(" ")
}

fn is_plain(word: &str) -> bool {
    !word.is_empty() && !word.chars().any(|c| c.is_whitespace() || matches!(c, '\'' | '"' | '\\'))
}

fn quoted(word: &str) -> String {
    if !word.contains('\'') {
        return format!("'{word}'");
    }
    let mut out = String::with_capacity(word.len() + 2);
    out.push('"');
    for c in word.chars() {
        out.extend(matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c]));
    }
    out.push('"');
    out
}
