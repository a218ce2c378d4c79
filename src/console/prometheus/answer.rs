//! JSON answers in Prometheus's format.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_promql::{Error, Instant, Labels, Millis, TimedValue, number};
use muster_topics::diagnostic::Diagnostic;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The hint of an error whose cause is only logged.
pub(super) const LOG_HINT: &str = "the console's log has the cause";

/// The type of an error, as Prometheus names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
    BadData,
    Execution,
    Timeout,
    Internal,
    NotFound,
    Unauthorised,
}

/// A request that has no answer.
#[derive(Debug)]
pub(super) struct QueryRefusal {
    kind: ErrorKind,
    diagnostic: Diagnostic,
}

impl QueryRefusal {
    pub(super) fn new(kind: ErrorKind, message: impl std::fmt::Display) -> Self {
        Self::told(kind, Diagnostic::new(message))
    }

    pub(super) fn told(kind: ErrorKind, diagnostic: Diagnostic) -> Self {
        Self { kind, diagnostic }
    }

    /// Creates the error of an invalid parameter.
    pub(super) fn parameter(name: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::BadData, format!("invalid parameter {name:?}: {problem}"))
    }

    /// The error of a request for series that failed. The cause is logged and not returned.
    pub(super) fn unreadable() -> Self {
        Self::new(ErrorKind::Internal, "the series cannot be read").hint(LOG_HINT)
    }

    /// Adds what the caller can do about it.
    pub(super) fn hint(mut self, hint: impl std::fmt::Display) -> Self {
        self.diagnostic = self.diagnostic.with_hint(hint);
        self
    }
}

impl From<Error> for QueryRefusal {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Query { .. } => ErrorKind::BadData,
            Error::Execution { .. } | Error::Limit { .. } => ErrorKind::Execution,
            Error::Enough => ErrorKind::Timeout,
            Error::Source(cause) => {
                tracing::error!(error = %cause, "reading series for a query failed");
                return Self::unreadable();
            }
        };
        Self::told(kind, Diagnostic::of(&error))
    }
}

impl IntoResponse for QueryRefusal {
    fn into_response(self) -> Response {
        let (status, word) = match self.kind {
            ErrorKind::BadData => (StatusCode::BAD_REQUEST, "bad_data"),
            ErrorKind::Execution => (StatusCode::UNPROCESSABLE_ENTITY, "execution"),
            ErrorKind::Timeout => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::Unauthorised => (StatusCode::UNAUTHORIZED, "unauthorized"),
        };
        let body = json!({ "status": "error", "errorType": word, "error": format!("{:#}", self.diagnostic) });
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Basic realm=\"muster\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// A response, or the error.
pub(super) type QueryResponse = Result<Response, QueryRefusal>;

/// Returns a successful response.
pub(super) fn success(data: impl Serialize) -> Response {
    #[derive(Serialize)]
    struct SuccessBody<T> {
        status: &'static str,
        data: T,
    }
    Json(SuccessBody { status: "success", data }).into_response()
}

/// Returns labels as an object.
pub(super) fn metric(labels: &Labels) -> Value {
    Value::Object(labels.iter().map(|(name, value)| (name.to_owned(), value.into())).collect::<Map<_, _>>())
}

/// The longest result: a thousand series at a thousand steps, and more than a browser shows.
const RESULT_MAX_BYTES: usize = 64 * 1024 * 1024;

/// The result of a query, while it is written. It is written as text, because it can be ten thousand times larger than its
/// structure.
struct ResultText {
    text: String,
    max_bytes: usize,
}

impl ResultText {
    fn new(kind: &str) -> Self {
        let text = format!(r#"{{"status":"success","data":{{"resultType":"{kind}","result":"#);
        Self { text, max_bytes: RESULT_MAX_BYTES }
    }

    fn push(&mut self, text: &str) -> Result<(), QueryRefusal> {
        if self.text.len().saturating_add(text.len()) > self.max_bytes {
            let message = format!("the result has more than {} bytes", self.max_bytes);
            return Err(QueryRefusal::new(ErrorKind::Execution, message).hint("aggregate, or take longer steps"));
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Writes a time in seconds as a number, and a value as a string, because JSON has no infinities.
    fn push_pair(&mut self, at_ms: Millis, value: &str) -> Result<(), QueryRefusal> {
        self.push(&format!("[{},{}]", number::seconds(at_ms), Value::from(value)))
    }

    /// Writes a list, whose items `push` writes.
    fn push_list<T>(
        &mut self,
        items: &[T],
        push: impl Fn(&mut Self, &T) -> Result<(), QueryRefusal>,
    ) -> Result<(), QueryRefusal> {
        self.push("[")?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.push(",")?;
            }
            push(self, item)?;
        }
        self.push("]")
    }

    fn respond(mut self, warnings: &[String]) -> Response {
        self.text.push('}');
        if !warnings.is_empty() {
            self.text.push_str(&format!(r#","warnings":{}"#, json!(warnings)));
        }
        self.text.push('}');
        ([(header::CONTENT_TYPE, "application/json")], self.text).into_response()
    }
}

pub(super) fn matrix(series: &[(Labels, Vec<TimedValue>)], warnings: &[String]) -> QueryResponse {
    let mut text = ResultText::new("matrix");
    text.push_list(series, |text, (labels, samples)| {
        text.push(&format!(r#"{{"metric":{},"values":"#, metric(labels)))?;
        text.push_list(samples, |text, (at_ms, value)| text.push_pair(*at_ms, &number::value(*value)))?;
        text.push("}")
    })?;
    Ok(text.respond(warnings))
}

pub(super) fn instant(answer: &Instant, at_ms: Millis, warnings: &[String]) -> QueryResponse {
    let mut text;
    match answer {
        Instant::Scalar(value) => {
            text = ResultText::new("scalar");
            text.push_pair(at_ms, &number::value(*value))?;
        }
        Instant::Text(value) => {
            text = ResultText::new("string");
            text.push_pair(at_ms, value)?;
        }
        Instant::Matrix(series) => return matrix(series, warnings),
        Instant::Vector(vector) => {
            text = ResultText::new("vector");
            text.push_list(vector, |text, (labels, value)| {
                text.push(&format!(r#"{{"metric":{},"value":"#, metric(labels)))?;
                text.push_pair(at_ms, &number::value(*value))?;
                text.push("}")
            })?;
        }
    }
    Ok(text.respond(warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_bounded() {
        let labels: Labels = [("n", "1")].into_iter().collect();
        let samples = |count| (0..count).map(|at_ms| (at_ms, 1.0 / 3.0)).collect::<Vec<TimedValue>>();
        matrix(&[(labels.clone(), samples(1_000))], &[]).unwrap();
        let each: Vec<_> = (0..40).map(|_| (labels.clone(), samples(100_000))).collect();
        let refusal = matrix(&each, &[]).unwrap_err();
        assert!(
            refusal.kind == ErrorKind::Execution && refusal.diagnostic.cause.contains("67108864 bytes"),
            "{refusal:?}"
        );
    }
}
