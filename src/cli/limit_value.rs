//! A value on the command line that may be `none`, such as a limit.

/// A value, or `None` for an explicit `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitValue<T>(pub Option<T>);

/// Parses a value, or `none`.
pub(super) fn or_none<T, E: ToString>(
    parse: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<LimitValue<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(LimitValue(None)),
        text => parse(text).map(|value| LimitValue(Some(value))).map_err(|error| error.to_string()),
    }
}
