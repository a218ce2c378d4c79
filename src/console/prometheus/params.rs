//! Reads parameters from the query string and from the form of a POST. If both have one of a name, the form's
//! comes first, as in Prometheus.

use axum::{
    Form, RequestExt,
    extract::{FromRequest, Query, Request, rejection::FormRejection},
    http::{Method, header},
};
use muster_promql::{Matchers, Millis, number};
use muster_topics::diagnostic::Diagnostic;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::timeout;

use super::{
    answer::{ErrorKind, QueryRefusal},
    state::DEADLINE,
};

/// The latest time with a date, in the year 9999.
const TIME_MAX_S: f64 = 253_402_300_799.0;
/// The most selectors in one request: more than a page of a dashboard has variables.
const SELECTORS_MAX: usize = 20;

/// The parameters of a request, in their order.
pub(super) struct FormParams(ParamPairs);

impl<S: Send + Sync> FromRequest<S> for FormParams {
    type Rejection = QueryRefusal;

    async fn from_request(mut request: Request, _: &S) -> Result<Self, QueryRefusal> {
        let wrong = |text: String| QueryRefusal::new(ErrorKind::BadData, format!("invalid parameters: {text}"));
        let Query(of_url): Query<ParamPairs> = request
            .extract_parts()
            .await
            .map_err(|error: axum::extract::rejection::QueryRejection| wrong(error.body_text()))?;
        let mut pairs = if has_form(&request) {
            match timeout(DEADLINE, request.extract::<Form<ParamPairs>, _>()).await {
                Ok(Ok(Form(pairs))) => pairs,
                Ok(Err::<_, FormRejection>(error)) => return Err(wrong(error.body_text())),
                Err(_) => {
                    return Err(QueryRefusal::new(ErrorKind::Timeout, "the request did not arrive completely in time"));
                }
            }
        } else {
            ParamPairs::new()
        };
        pairs.extend(of_url);
        Ok(Self(pairs))
    }
}

type ParamPairs = Vec<(String, String)>;

/// Whether a request has a form: a POST that declares one. Other bodies are ignored.
fn has_form(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    request.method() == Method::POST && kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

impl FormParams {
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a name, if it is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    pub(super) fn query(&self) -> Result<&str, QueryRefusal> {
        self.get("query").ok_or_else(|| QueryRefusal::parameter("query", "it is missing or empty"))
    }

    /// Parses a time: seconds since 1970, or a date (RFC 3339).
    pub(super) fn time(&self, name: &str) -> Result<Option<Millis>, QueryRefusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        if let Some(seconds) = text.parse::<f64>().ok().filter(|seconds| seconds.abs() <= TIME_MAX_S) {
            return Ok(Some(millis(seconds)));
        }
        let date = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
            QueryRefusal::parameter(name, format!("cannot parse {text:?} to a valid timestamp"))
                .hint("seconds, or a date such as 2026-01-31T12:00:00Z")
        })?;
        Ok(Millis::try_from(date.unix_timestamp_nanos().div_euclid(1_000_000)).ok())
    }

    /// Parses a required time.
    pub(super) fn needed_time(&self, name: &str) -> Result<Millis, QueryRefusal> {
        self.time(name)?.ok_or_else(|| QueryRefusal::parameter(name, "it is missing"))
    }

    /// Parses a duration: seconds, or such as `5m`.
    pub(super) fn duration(&self, name: &str) -> Result<Option<Millis>, QueryRefusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.abs() <= TIME_MAX_S).map(millis);
        let duration = seconds.or_else(|| number::duration(text));
        let problem = || format!("cannot parse {text:?} to a valid duration");
        let refusal = || QueryRefusal::parameter(name, problem()).hint("seconds, or such as 5m");
        duration.map(Some).ok_or_else(refusal)
    }

    /// Parses the selectors `match[]`.
    pub(super) fn selectors(&self) -> Result<Vec<Matchers>, QueryRefusal> {
        let texts: Vec<&str> = self.all("match[]").collect();
        if texts.len() > SELECTORS_MAX {
            return Err(QueryRefusal::parameter("match[]", format!("at most {SELECTORS_MAX} are allowed")));
        }
        let refusal = |error| {
            let diagnostic = Diagnostic::of(&error).within("invalid parameter \"match[]\"");
            QueryRefusal::told(ErrorKind::BadData, diagnostic)
        };
        texts.iter().map(|text| muster_promql::selector(text).map_err(refusal)).collect()
    }
}

fn millis(seconds: f64) -> Millis {
    (seconds * 1000.0).round() as Millis
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    async fn read(method: Method, url: &str, kind: &str, body: &'static str) -> Vec<String> {
        let request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, kind);
        let params = FormParams::from_request(request.body(Body::from(body)).unwrap(), &()).await;
        let Ok(FormParams(pairs)) = params else { panic!("{url}: refused") };
        pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[tokio::test]
    async fn form_parameters_precede_query_parameters() {
        const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(read(Method::POST, "/q?time=5&query=1", FORM, "query=2").await, ["query=2", "time=5", "query=1"]);
        assert_eq!(read(Method::POST, "/q?query=1", FORM, "").await, ["query=1"]);
        // As in Prometheus: bodies that are not forms are ignored, and so is the body of a GET.
        assert_eq!(read(Method::POST, "/q?query=1", "application/json", "{}").await, ["query=1"]);
        assert_eq!(read(Method::GET, "/q?query=a%2Bb", FORM, "query=2").await, ["query=a+b"]);
    }
}
