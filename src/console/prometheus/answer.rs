//! JSON answers in Prometheus's format.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_promql::{Error, Instant, Labels, Millis, TimedValue, number};
use serde::Serialize;
use serde_json::{Map, Value, json};

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
    message: String,
}

impl QueryRefusal {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates the error of an invalid parameter.
    pub(super) fn parameter(name: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::BadData, format!("invalid parameter {name:?}: {problem}"))
    }
}

impl From<Error> for QueryRefusal {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Query(_) => ErrorKind::BadData,
            Error::Execution(_) | Error::Limit(_) => ErrorKind::Execution,
            Error::Enough => ErrorKind::Timeout,
            // The cause is logged and not returned.
            Error::Source(cause) => {
                tracing::error!(error = %cause, "reading series for a query failed");
                return Self::new(ErrorKind::Internal, "the series cannot be read. hint: the console's log says more");
            }
        };
        Self::new(kind, error.to_string())
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
        let body = json!({ "status": "error", "errorType": word, "error": self.message });
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

/// Formats a time in seconds as a number, and a value as a string, because JSON has no infinities.
fn pair(at_ms: Millis, value: &str) -> String {
    format!("[{},{}]", number::seconds(at_ms), Value::from(value))
}

fn points(samples: &[TimedValue]) -> String {
    let points: Vec<String> = samples.iter().map(|(at_ms, value)| pair(*at_ms, &number::value(*value))).collect();
    format!("[{}]", points.join(","))
}

/// Returns the data of a query's result. It is written as text, because it can be ten thousand times larger than its
/// structure.
fn data(kind: &str, result: &str, warnings: &[String]) -> Response {
    let warnings = if warnings.is_empty() { String::new() } else { format!(r#","warnings":{}"#, json!(warnings)) };
    let body = format!(r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}{warnings}}}"#);
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) fn matrix(series: &[(Labels, Vec<TimedValue>)], warnings: &[String]) -> Response {
    let each: Vec<String> = series
        .iter()
        .map(|(labels, samples)| format!(r#"{{"metric":{},"values":{}}}"#, metric(labels), points(samples)))
        .collect();
    data("matrix", &format!("[{}]", each.join(",")), warnings)
}

pub(super) fn instant(answer: &Instant, at_ms: Millis, warnings: &[String]) -> Response {
    match answer {
        Instant::Scalar(value) => data("scalar", &pair(at_ms, &number::value(*value)), warnings),
        Instant::Text(text) => data("string", &pair(at_ms, text), warnings),
        Instant::Matrix(series) => matrix(series, warnings),
        Instant::Vector(vector) => {
            let each: Vec<String> = vector
                .iter()
                .map(|(labels, value)| {
                    format!(r#"{{"metric":{},"value":{}}}"#, metric(labels), pair(at_ms, &number::value(*value)))
                })
                .collect();
            data("vector", &format!("[{}]", each.join(",")), warnings)
        }
    }
}
