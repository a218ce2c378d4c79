//! Values as SQLite keeps them, and back.

use std::{fmt::Display, str::FromStr};

use super::error::{StoreError, StoreResult};

/// Parses a stored text.
pub(super) fn parsed<T: FromStr<Err: Display>>(what: &'static str, text: &str) -> StoreResult<T> {
    text.parse().map_err(|error: T::Err| StoreError::Row { what, problem: error.to_string() })
}

/// Parses a stored JSON document.
pub(super) fn json<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// Serialises a JSON document.
pub(super) fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> StoreResult<String> {
    serde_json::to_string(value).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// Returns the text of an enum that serialises as a JSON string.
pub(super) fn word<T: serde::Serialize>(what: &'static str, value: &T) -> StoreResult<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Ok(text),
        other => Err(StoreError::Row { what, problem: format!("{other:?} is not a word") }),
    }
}

/// Parses an enum that serialises as a JSON string.
pub(super) fn from_word<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> StoreResult<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

pub(super) fn unsigned(what: &'static str, value: i64) -> StoreResult<u64> {
    u64::try_from(value).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

/// Converts a number of another party for the store. One that is too large becomes the largest.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
