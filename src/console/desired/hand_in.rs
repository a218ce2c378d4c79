//! The interface for hosts: the body of a host's document, and documents that hosts hand in.

use axum::http::StatusCode;
use muster_base::clock::now_ms;
use muster_topics::{
    desired::{BODY_MAX_BYTES, DesiredBody, DesiredHead, StoredDocument},
    envelope,
    name::{Digest, HostId},
};

use crate::{
    error::Error,
    state::Console,
    store::{
        StoreError,
        desired::{self, HandedInRow},
    },
};

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

    /// Takes the document that a host has, because the console has asked for it.
    pub(crate) async fn hand_in(&self, host: HostId, document: &StoredDocument) -> Result<(), Error> {
        let wrong = |message: &str| Error::invalid("bad_document", message);
        if document.body.len() > BODY_MAX_BYTES {
            return Err(wrong(&format!("the body is longer than {BODY_MAX_BYTES} bytes")));
        }
        let bytes = serde_json::to_vec(&document.head).map_err(|error| wrong(&error.to_string()))?;
        let keys = self.shared.authority.keys().state.of_hosts();
        let verified = envelope::open(&bytes, &keys)
            .map_err(|error| wrong(&format!("the head is not signed by this console: {error}")))?;
        let head: DesiredHead = verified.body().map_err(|error| wrong(&format!("the head is none: {error}")))?;
        if head.host != host {
            return Err(wrong("the document is another host's"));
        }
        if Digest::of(document.body.as_bytes()) != head.digest {
            return Err(wrong("the body is not that of the head"));
        }
        if let Err(error) = serde_json::from_str::<DesiredBody>(&document.body) {
            return Err(wrong(&format!("the body cannot be read: {error}")));
        }
        // Only what was asked for is kept: a member cannot fill the store.
        let is_asked = self.shared.hosts.desired.table().hosts.get(&host).is_some_and(|entry| entry.is_unconfirmed);
        if !is_asked {
            return Err(Error::conflict("not_asked", "the console knows the document of this host"));
        }
        let row = HandedInRow { mark: head.mark, digest: head.digest };
        let mut transaction = self.shared.store.begin().await?;
        desired::hand_in(&mut transaction, host, &row, &document.body, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        if let Some(entry) = self.shared.hosts.desired.table().hosts.get_mut(&host) {
            entry.handed_in = Some(row);
        }
        tracing::info!(host.id = %host, document = %head.mark, "a host has handed in its document");
        Ok(())
    }
}
