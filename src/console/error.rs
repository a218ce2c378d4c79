//! Refused requests, as operators and hosts see them.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_api::Problem;
use muster_series::SeriesError;
use muster_topics::{Millis, diagnostic::Diagnostic};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::store::StoreError;

/// A refused request: an HTTP status and the reason.
#[derive(Clone, Debug)]
pub struct Error {
    /// HTTP status code.
    pub status: u16,
    /// The reason.
    pub problem: Problem,
}

impl Error {
    /// Creates an error with a code for programs and a message for people.
    #[must_use]
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status: status.as_u16(), problem: Problem::new(code, message.into()) }
    }

    /// Adds what follows from it.
    #[must_use]
    pub fn consequence(mut self, consequence: impl Into<String>) -> Self {
        self.problem.diagnostic.consequence = Some(consequence.into());
        self
    }

    /// Adds what the caller can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.diagnostic.hint = Some(hint.into());
        self
    }

    /// 400: the request is invalid.
    #[must_use]
    pub fn invalid(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Creates an error from what is told already.
    #[must_use]
    pub fn told(status: StatusCode, code: &str, diagnostic: Diagnostic) -> Self {
        Self { status: status.as_u16(), problem: Problem { code: code.to_owned(), diagnostic } }
    }

    /// Creates an error of another, with its causes and its hint.
    #[must_use]
    pub fn of(status: StatusCode, code: &str, error: &dyn miette::Diagnostic) -> Self {
        Self::told(status, code, Diagnostic::of(error))
    }

    /// 404: there is no such thing.
    #[must_use]
    pub fn not_found(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 409: it contradicts the present state.
    #[must_use]
    pub fn conflict(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 401: the caller is not signed in.
    #[must_use]
    pub fn unauthorised(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code, message)
    }

    /// 500: an internal error. The cause is logged and not returned.
    #[must_use]
    pub fn internal(what: &'static str, cause: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = cause, "{what} failed");
        Self::failed(what)
    }

    /// 500: the same, of an error that may have a hint, which is logged beside it.
    #[must_use]
    pub fn internal_of(what: &'static str, cause: &dyn miette::Diagnostic) -> Self {
        let Diagnostic { cause, hint, .. } = Diagnostic::of(cause);
        tracing::error!(error = cause, hint, "{what} failed");
        Self::failed(what)
    }

    fn failed(what: &'static str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("{what} failed"))
            .hint("the console's log has the cause")
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem.diagnostic.cause)
    }
}

impl std::error::Error for Error {}

impl miette::Diagnostic for Error {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        let hint = self.problem.diagnostic.hint.as_ref()?;
        Some(Box::new(hint))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        if error.is_full() {
            tracing::error!(%error, hint = Diagnostic::of(&error).hint, "the console's store cannot be written");
            return Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "store_full",
                "the console's store is not writable: its disk is full or read-only",
            )
            .consequence("nothing of this was done")
            .hint(format!("of the console's folder (data_dir): {}; then try again", muster_sqlite::room::STORE_HINT));
        }
        if error.is_damage() {
            tracing::error!(%error, hint = Diagnostic::of(&error).hint, "the console's store is damaged");
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_damaged", "the console's store is damaged")
                .consequence("this cannot be read or written")
                .hint("restart the console, whose error says how to repair it; check its machine's disk");
        }
        match error {
            StoreError::Altered { what, .. } => {
                Self::conflict("content_damaged", format!("{what} is damaged")).hint("create it again")
            }
            error => Self::internal_of("the console's store", &error),
        }
    }
}

/// A time, for people.
fn utc(at_ms: Millis) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{at_ms} ms"))
}

impl From<SeriesError> for Error {
    fn from(error: SeriesError) -> Self {
        match error {
            SeriesError::Selector(problem) => Self::invalid("bad_selector", problem.to_string())
                .hint("such as muster_host_cpu_busy_ratio{host=\"…\"}"),
            SeriesError::Range { start_ms, end_ms } => {
                let message = format!("the range ends at {}, before it starts at {}", utc(end_ms), utc(start_ms));
                Self::invalid("bad_range", message)
            }
            SeriesError::TooMany { .. } => Self::of(StatusCode::BAD_REQUEST, "too_many_series", &error),
            SeriesError::Deadline(_) => Self::of(StatusCode::BAD_REQUEST, "too_much", &error),
            SeriesError::LeftOut { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "series_left_out", error.to_string())
                    .hint("hosts keep their measurements; the console's log and `muster alert ls` show what to do")
            }
            other => Self::internal_of("the time-series store", &other),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.problem)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_query_is_a_client_error() {
        for (error, code, has_hint) in [
            (SeriesError::TooMany { series_max: 5 }, "too_many_series", true),
            (SeriesError::Deadline(std::time::Duration::from_secs(5)), "too_much", true),
        ] {
            let (text, refusal) = (error.to_string(), Error::from(error));
            assert_eq!((refusal.status, refusal.problem.code.as_str()), (400, code));
            assert_eq!((refusal.problem.diagnostic.cause, refusal.problem.diagnostic.hint.is_some()), (text, has_hint));
        }
        assert_eq!(Error::from(SeriesError::Stopped).status, 500);
        let reversed = Error::from(SeriesError::Range { start_ms: 2_000, end_ms: 1_000 }).problem;
        assert_eq!(reversed.code, "bad_range");
        let expected = "the range ends at 1970-01-01T00:00:01Z, before it starts at 1970-01-01T00:00:02Z";
        assert_eq!(reversed.diagnostic.cause, expected);
    }
}
