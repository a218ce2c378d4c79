//! What comes in: parameters behind the question mark of a GET, or in the form of a POST.

use axum::{
    Form,
    extract::{FromRequest, Request},
};
use muster_promql::{Matchers, Millis, number};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::timeout;

use super::{
    DEADLINE,
    answer::{Kind, Refusal},
};

/// The latest time that has a date, in the year 9999.
const TIME_MAX_S: f64 = 253_402_300_799.0;
/// The most selectors in one request: more than a page of a dashboard has variables.
const SELECTORS_MAX: usize = 20;

/// A request's parameters, in their order.
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Params {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let read = Form::<Vec<(String, String)>>::from_request(request, state);
        match timeout(DEADLINE, read).await {
            Ok(Ok(Form(pairs))) => Ok(Self(pairs)),
            Ok(Err(error)) => Err(Refusal::new(Kind::BadData, format!("the parameters: {}", error.body_text()))),
            Err(_) => Err(Refusal::new(Kind::Timeout, "the request did not come whole in time")),
        }
    }
}

impl Params {
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The first of a name, if it is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    pub(super) fn query(&self) -> Result<&str, Refusal> {
        self.get("query").ok_or_else(|| Refusal::parameter("query", "it is missing or empty"))
    }

    /// A time: seconds since 1970, or a date (RFC 3339).
    pub(super) fn time(&self, name: &str) -> Result<Option<Millis>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        if let Some(seconds) = text.parse::<f64>().ok().filter(|seconds| seconds.abs() <= TIME_MAX_S) {
            return Ok(Some(millis(seconds)));
        }
        let date = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
            Refusal::parameter(
                name,
                format!(
                    "cannot parse {text:?} to a valid timestamp. hint: seconds, or a date such as 2026-01-31T12:00:00Z"
                ),
            )
        })?;
        Ok(Millis::try_from(date.unix_timestamp_nanos().div_euclid(1_000_000)).ok())
    }

    /// A time that must be there.
    pub(super) fn needed_time(&self, name: &str) -> Result<Millis, Refusal> {
        self.time(name)?.ok_or_else(|| Refusal::parameter(name, "it is missing"))
    }

    /// A duration: seconds, or such as `5m`.
    pub(super) fn duration(&self, name: &str) -> Result<Option<Millis>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.abs() <= TIME_MAX_S).map(millis);
        let duration = seconds.or_else(|| number::duration(text));
        let problem = || format!("cannot parse {text:?} to a valid duration. hint: seconds, or such as 5m");
        duration.map(Some).ok_or_else(|| Refusal::parameter(name, problem()))
    }

    /// The selectors `match[]`.
    pub(super) fn selectors(&self) -> Result<Vec<Matchers>, Refusal> {
        let texts: Vec<&str> = self.all("match[]").collect();
        if texts.len() > SELECTORS_MAX {
            return Err(Refusal::parameter("match[]", format!("at most {SELECTORS_MAX} are possible")));
        }
        let read = |text: &&str| muster_promql::selector(text).map_err(|error| Refusal::parameter("match[]", error));
        texts.iter().map(read).collect()
    }
}

fn millis(seconds: f64) -> Millis {
    (seconds * 1000.0).round() as Millis
}
