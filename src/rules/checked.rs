//! JSON documents with a checksum: the first member, `sum`, is a checksum of the rest. Without it a flipped
//! bit in a number or a name would leave valid JSON with another meaning.

use serde::{Serialize, de::DeserializeOwned};

use crate::mark::checksum;

const START: &str = "{\"sum\":";

/// Serialises a document with its checksum. It must be an object with at least one member.
///
/// # Errors
/// If it cannot be serialised as JSON.
pub fn to_text<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let plain = serde_json::to_string(value)?;
    let Some(rest) = plain.strip_prefix('{') else { return Ok(plain) };
    Ok(format!("{START}{},{rest}", checksum(plain.as_bytes())))
}

/// Parses a document and verifies its checksum.
///
/// # Errors
/// What is wrong with the document.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let summed = text.strip_prefix(START).ok_or("it has no checksum")?;
    let (sum, rest) = summed.split_once(',').ok_or("it ends within its checksum")?;
    let plain = format!("{{{rest}");
    if sum.parse() != Ok(checksum(plain.as_bytes())) {
        return Err("its checksum is not that of its content".to_owned());
    }
    serde_json::from_str(&plain).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        number: u64,
        names: Vec<String>,
    }

    fn document() -> Document {
        Document { number: 1_700_000, names: vec!["one".to_owned(), "two".to_owned()] }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let text = to_text(&document()).unwrap();
        assert_eq!(from_bytes::<Document>(text.as_bytes()), Ok(document()));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(from_bytes::<Document>(&bytes).is_err(), "bit {bit}: {:?}", String::from_utf8_lossy(&bytes));
        }
        for end in 0..text.len() {
            assert!(from_bytes::<Document>(&text.as_bytes()[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn document_without_checksum_is_refused() {
        let text = serde_json::to_string(&document()).unwrap();
        assert_eq!(from_bytes::<Document>(text.as_bytes()), Err("it has no checksum".to_owned()));
    }
}
