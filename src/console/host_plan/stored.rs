//! Requests for plans that have no room in a command: hosts fetch them, while they are asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::StatusCode;
use muster_topics::{
    desired::{BODY_MAX_BYTES, PlanQuestion, PlanRequest},
    name::{Digest, HostId},
};

use crate::error::Error;

/// The largest request in a command: its environments are sealed there, for a hundred hosts.
const IN_COMMAND_MAX_BYTES: usize = 32 * 1024;

/// Requests with the hosts that are asked, by the digest of their JSON: two plans that are made at once may be equal.
#[derive(Debug, Default)]
pub(super) struct StoredRequests(Mutex<HashMap<Digest, Vec<Arc<StoredRequest>>>>);

#[derive(Debug)]
struct StoredRequest {
    request: PlanRequest,
    /// Sorted.
    hosts: Vec<HostId>,
}

/// Requests that are stored as long as this is.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    stored: &'a StoredRequests,
    own: Vec<(Digest, Arc<StoredRequest>)>,
}

impl StoredRequests {
    fn all(&self) -> MutexGuard<'_, HashMap<Digest, Vec<Arc<StoredRequest>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what one of its hosts has to be sent, as JSON.
    pub(super) fn get(&self, host: HostId, digest: &Digest) -> Option<String> {
        let is_asked = |stored: &&Arc<StoredRequest>| stored.hosts.binary_search(&host).is_ok();
        let found = self.all().get(digest)?.iter().find(is_asked).cloned()?;
        serde_json::to_string(&found.request).ok()
    }

    /// Begins to ask hosts.
    pub(super) fn asking(&self) -> Asking<'_> {
        Asking { stored: self, own: Vec::new() }
    }
}

impl Asking<'_> {
    /// Returns how a command asks for a plan; a large request is stored for these hosts, which are sorted.
    ///
    /// # Errors
    /// If the document of a host could not be that large.
    pub(super) fn question(&mut self, request: &PlanRequest, hosts: &[HostId]) -> Result<PlanQuestion, Error> {
        let text = serde_json::to_string(request).map_err(|error| Error::internal("a request for a plan", &error))?;
        if text.len() <= IN_COMMAND_MAX_BYTES {
            return Ok(PlanQuestion::Request(Box::new(request.clone())));
        }
        if text.len() > BODY_MAX_BYTES {
            let message =
                format!("the documents to plan have {} bytes; at most {BODY_MAX_BYTES} are allowed", text.len());
            return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
                .hint("put what is large into an artifact or a config"));
        }
        let digest = Digest::of(text.as_bytes());
        let stored = Arc::new(StoredRequest { request: request.clone(), hosts: hosts.to_vec() });
        self.stored.all().entry(digest.clone()).or_default().push(Arc::clone(&stored));
        self.own.push((digest.clone(), stored));
        Ok(PlanQuestion::Stored { digest })
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut all = self.stored.all();
        for (digest, own) in &self.own {
            if let Some(stored) = all.get_mut(digest) {
                stored.retain(|one| !Arc::ptr_eq(one, own));
                if stored.is_empty() {
                    all.remove(digest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{name::Name, realm::Realm};

    use super::*;

    fn large() -> PlanRequest {
        let realm = |number: usize| Realm::new(format!("r{number}").parse::<Name>().unwrap());
        PlanRequest { realms: (0..4_000).map(realm).collect(), ..PlanRequest::default() }
    }

    #[test]
    fn large_request_is_there_for_its_hosts_while_they_are_asked() {
        let stored = StoredRequests::default();
        let mut hosts = [HostId::random(), HostId::random(), HostId::random()];
        hosts.sort_unstable();
        let [one, two, other] = hosts;
        let mut first = stored.asking();
        let small = first.question(&PlanRequest::default(), &[one]).unwrap();
        assert!(matches!(small, PlanQuestion::Request(_)));
        let Ok(PlanQuestion::Stored { digest }) = first.question(&large(), &[one]) else { panic!("it is large") };
        // Somebody else makes the same plan.
        let mut second = stored.asking();
        second.question(&large(), &[one, two]).unwrap();
        let text = stored.get(one, &digest).unwrap();
        assert_eq!(Digest::of(text.as_bytes()), digest);
        assert_eq!(serde_json::from_str::<PlanRequest>(&text).unwrap(), large());
        assert_eq!(stored.get(other, &digest), None);
        drop(first);
        assert!(stored.get(one, &digest).is_some() && stored.get(two, &digest).is_some());
        drop(second);
        assert!(stored.get(one, &digest).is_none() && stored.all().is_empty());
    }

    #[test]
    fn request_beyond_any_document_is_refused() {
        let mut request = large();
        request.realms = request.realms.iter().cycle().take(60_000).cloned().collect();
        let stored = StoredRequests::default();
        let error = stored.asking().question(&request, &[HostId::random()]).unwrap_err();
        assert_eq!(error.problem.code, "too_large");
    }
}
