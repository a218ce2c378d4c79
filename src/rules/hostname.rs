//! Cleans the hostname for display: the kernel accepts any bytes, and none.

/// The longest hostname, as in DNS.
pub const HOSTNAME_MAX_BYTES: usize = 253;

/// The name of a host without a name.
pub const UNNAMED: &str = "unnamed";

/// Whether a text can be used as a hostname.
#[must_use]
pub fn is_good(text: &str) -> bool {
    !text.is_empty() && text.len() <= HOSTNAME_MAX_BYTES && !text.chars().any(char::is_control)
}

/// Turns a text into a hostname: control characters become question marks, a long name is cut, and an empty one becomes
/// [`UNNAMED`].
#[must_use]
pub fn cleaned(text: &str) -> String {
    let mut name = text_cleaned(text);
    while name.len() > HOSTNAME_MAX_BYTES {
        name.pop();
    }
    if name.is_empty() { UNNAMED.to_owned() } else { name }
}

/// Replaces control characters by question marks.
#[must_use]
pub fn text_cleaned(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
            (long.as_str(), &"é".repeat(126)),
        ] {
            assert_eq!(cleaned(name), wanted);
            assert!(is_good(&cleaned(name)));
            assert_eq!(is_good(name), name == wanted, "{name:?}");
        }
    }
}
