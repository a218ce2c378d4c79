//! Cleans the hostname for display: the kernel accepts any bytes, and none.

use crate::invisible::is_invisible;

/// The longest hostname, as in DNS.
pub const HOSTNAME_MAX_BYTES: usize = 253;

/// The name of a host without a name.
pub const UNNAMED: &str = "unnamed";

/// Whether a text can be used as a hostname.
#[must_use]
pub fn is_good(text: &str) -> bool {
    !text.is_empty() && text.len() <= HOSTNAME_MAX_BYTES && text.trim() == text && !text.chars().any(is_invisible)
}

/// Turns a text into a hostname: invisible characters become question marks, a long name is cut, and an empty one becomes
/// [`UNNAMED`].
#[must_use]
pub fn cleaned(text: &str) -> String {
    let mut name = text_cleaned(text.trim_matches(' '));
    while name.len() > HOSTNAME_MAX_BYTES || name.ends_with(' ') {
        name.pop();
    }
    if name.is_empty() { UNNAMED.to_owned() } else { name }
}

/// Replaces invisible characters by question marks.
#[must_use]
pub fn text_cleaned(text: &str) -> String {
    text.chars().map(|c| if is_invisible(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_a_displayable_hostname() {
        let long = "é".repeat(200);
        for (name, wanted) in [
            ("till-7.shop", "till-7.shop"),
            ("", UNNAMED),
            ("a\u{1b}[31mb\n", "a?[31mb?"),
            ("Zürich", "Zürich"),
            ("till\u{200b}-7", "till?-7"),
            ("\u{202e}7-llit", "?7-llit"),
            ("till-7\u{a0}", "till-7?"),
            (" till-7 ", "till-7"),
            (long.as_str(), &"é".repeat(126)),
        ] {
            assert_eq!(cleaned(name), wanted);
            assert!(is_good(&cleaned(name)));
            assert_eq!(is_good(name), name == wanted, "{name:?}");
        }
    }
}
