//! Splits a stream of bytes into pieces at character boundaries, if the stream is text.

/// Returns how much of `bytes` makes a piece that does not end within a UTF-8 character.
///
/// An incomplete character at the end, of at most three bytes, is held back. Bytes that are not UTF-8 are not held
/// back, so a piece is never empty because of its end.
#[must_use]
pub(super) fn whole_characters(bytes: &[u8]) -> usize {
    let begun = bytes.iter().rev().take(3).position(|byte| byte & 0b1100_0000 != 0b1000_0000);
    let Some(begun) = begun.map(|from_end| bytes.len() - 1 - from_end) else { return bytes.len() };
    match std::str::from_utf8(&bytes[begun..]) {
        // No error length: valid so far, but incomplete.
        Err(error) if error.error_len().is_none() => begun,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_cut_at_character_boundaries() {
        for (bytes, whole) in [
            (&b""[..], 0),
            (b"a", 1),
            (b"ab\xc3", 2),
            (b"ab\xc3\xa9", 4),
            (b"\xe2", 0),
            (b"\xe2\x82", 0),
            (b"\xe2\x82\xac", 3),
            (b"x\xf0\x9f\x98", 1),
            (b"x\xf0\x9f\x98\x80", 5),
            // Not UTF-8: nothing to hold back.
            (b"\x80\x80\x80\x80", 4),
            (b"\xff", 1),
            (b"a\xc3a", 3),
            (b"\xf8\x80\x80", 3),
        ] {
            assert_eq!(whole_characters(bytes), whole, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_of_text_are_text(text in ".{0,64}", at in 0_usize..64) {
            let bytes = &text.as_bytes()[..at.min(text.len())];
            let cut = whole_characters(bytes);
            prop_assert!(text.is_char_boundary(cut));
            prop_assert!(bytes.len() - cut <= 3);
        }

        #[test]
        fn at_most_three_bytes_are_held_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(bytes.len() - whole_characters(&bytes) <= 3);
        }
    }
}
