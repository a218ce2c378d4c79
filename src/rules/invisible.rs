//! Characters that nothing shows: with one of them a name looks like another one.

/// Whether a character is not shown, or changes how others are shown: controls, marks of direction, joiners, fillers, variation
/// selectors, tags, and spaces other than the usual one.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    match character {
        ' ' => false,
        // The soft hyphen, the grapheme joiner, the mark of Arabic letters, and fillers.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        // A cell of Braille without dots, and more fillers.
        '\u{2800}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{fff0}'..='\u{fffb}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' => true,
        other => other.is_control() || other.is_whitespace(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_told_from_what_is_not() {
        for shown in "aZ0-_. ZüЖ日本語é\u{301}👍".chars() {
            assert!(!is_invisible(shown), "{shown:?}");
        }
        for hidden in [
            '\0',
            '\n',
            '\u{1b}',
            '\u{7f}',
            '\u{85}',
            '\u{a0}',
            '\u{ad}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{202e}',
            '\u{2028}',
            '\u{202f}',
            '\u{2060}',
            '\u{2062}',
            '\u{3000}',
            '\u{3164}',
            '\u{feff}',
            '\u{fe0f}',
            '\u{fff9}',
            '\u{e0041}',
            '\u{e0100}',
        ] {
            assert!(is_invisible(hidden), "{hidden:?}");
        }
    }
}
