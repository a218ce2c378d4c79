//! The interface for hosts: the body of a host's document, and what hosts hand in of the console, which has lost it.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use muster_base::clock::now_ms;
use muster_topics::{
    desired::{BODY_MAX_BYTES, DesiredBody, DesiredHead, HandedIn, StoredDocument},
    envelope::{self, Body, Envelope},
    name::{Digest, HostId, LabelValue, Name},
    numbered::{NumberedContent, NumberedDocument},
};

use super::table::HostEntry;
use crate::{
    error::Error,
    given,
    state::Console,
    store::{
        self, StoreError,
        desired::{self, HandedInRow},
        given::GivenUnit,
    },
};

/// A document that this console has signed for a host, which hands it in.
struct HandedInDocument<'a> {
    row: HandedInRow,
    body: &'a str,
    /// What it gives to the host.
    units: Vec<GivenUnit>,
}

/// Labels that this console has signed for a host, which hands them in.
struct HandedInLabels {
    number: u64,
    labels: BTreeMap<Name, LabelValue>,
}

impl Console {
    /// Returns the body with this digest, if it is that of the host's present document.
    pub(crate) async fn desired_body(&self, host: HostId, digest: &Digest) -> Result<String, Error> {
        // A host learns of no other's documents.
        desired::body_for(self.shared.store.read(), host, digest).await?.ok_or_else(|| {
            Error::new(
                StatusCode::FORBIDDEN,
                "not_assigned",
                format!("the present document of host {host} has another digest than {digest}"),
            )
            .hint("the head on the host's topic names the present one")
        })
    }

    /// Takes what a host has of the console, because the console has asked for it. What it does not need is not kept: a
    /// member cannot fill the store.
    pub(crate) async fn hand_in(&self, host: HostId, handed_in: &HandedIn) -> Result<(), Error> {
        let document =
            handed_in.document.as_ref().map(|document| self.verified_document(host, document)).transpose()?;
        let labels = handed_in.labels.as_ref().map(|labels| self.verified_labels(host, labels)).transpose()?;
        let (lacks_document, newer_labels) = {
            let table = self.shared.hosts.desired.table();
            let entry = table.hosts.get(&host);
            (entry.is_some_and(HostEntry::is_unconfirmed), entry.and_then(HostEntry::newer_number))
        };
        let document = document.filter(|_| lacks_document);
        let labels = labels.filter(|labels| Some(labels.number) == newer_labels);
        if document.is_none() && labels.is_none() {
            return Err(Error::conflict("not_asked", "the console knows what this host has"));
        }
        if let Some(HandedInDocument { row, body, units }) = document {
            let mut transaction = self.shared.store.begin().await?;
            desired::hand_in(&mut transaction, host, &row, body, now_ms()).await?;
            // What the console has signed for a host later than all that it remembers, it has given to it, and has forgotten.
            if desired::is_later(&mut transaction, host, row.mark).await? {
                for unit in units {
                    store::given::give(&mut transaction, &[host], &unit, None).await?;
                }
            }
            transaction.commit().await.map_err(StoreError::from)?;
            tracing::info!(host.id = %host, document = %row.mark, "a host has sent its document");
            if let Some(entry) = self.shared.hosts.desired.table().hosts.get_mut(&host) {
                entry.handed_in = Some(row);
            }
        }
        if let Some(labels) = labels {
            tracing::info!(host.id = %host, number = labels.number, "a host has sent its labels");
            // After a restart of the console it is asked again.
            let mut table = self.shared.hosts.desired.table();
            let newer = table.hosts.get_mut(&host).and_then(|entry| entry.newer_labels.as_mut());
            if let Some(newer) = newer.filter(|newer| newer.number == labels.number) {
                newer.handed_in = Some(labels.labels);
            }
        }
        Ok(())
    }

    fn verified_document<'a>(&self, host: HostId, document: &'a StoredDocument) -> Result<HandedInDocument<'a>, Error> {
        if document.body.len() > BODY_MAX_BYTES {
            return Err(wrong(&format!("the body is longer than {BODY_MAX_BYTES} bytes")));
        }
        let head: DesiredHead = self.opened("head", &document.head)?;
        if head.host != host {
            return Err(wrong("the document is another host's"));
        }
        if Digest::of(document.body.as_bytes()) != head.digest {
            return Err(wrong("the body is not that of the head"));
        }
        let body: DesiredBody = serde_json::from_str(&document.body)
            .map_err(|error| wrong(&format!("the body cannot be read: {error}")))?;
        let units = body.deployments.iter().flat_map(given::of_deployment).collect();
        Ok(HandedInDocument { row: HandedInRow { mark: head.mark, digest: head.digest }, body: &document.body, units })
    }

    fn verified_labels(&self, host: HostId, labels: &Envelope) -> Result<HandedInLabels, Error> {
        let document: NumberedDocument = self.opened("message with labels", labels)?;
        match document.content {
            NumberedContent::HostLabels(labels) if document.host == host => {
                Ok(HandedInLabels { number: document.number, labels })
            }
            NumberedContent::HostLabels(_) => Err(wrong("the labels are another host's")),
            other => Err(wrong(&format!("the message has {} instead of labels", other.kind().as_str()))),
        }
    }

    /// Verifies what this console has signed once.
    fn opened<B: Body>(&self, what: &str, envelope: &Envelope) -> Result<B, Error> {
        let bytes = serde_json::to_vec(envelope).map_err(|error| wrong(&error.to_string()))?;
        let keys = self.shared.authority.keys().state.of_hosts();
        let verified = envelope::open(&bytes, &keys)
            .map_err(|error| wrong(&format!("the {what} is not signed by this console: {error}")))?;
        verified.body().map_err(|error| wrong(&format!("the {what} is not valid: {error}")))
    }
}

fn wrong(message: &str) -> Error {
    Error::invalid("bad_document", message)
}
