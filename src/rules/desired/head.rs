//! Judges heads of documents.

use muster_fault::planted;
use muster_topics::{
    desired::{BODY_MAX_BYTES, DesiredHead, DesiredMark},
    diagnostic::Diagnostic,
    name::{Digest, HostId},
};

/// What a host knows of its document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownDocument {
    /// The stored document; zeros if there is none.
    pub mark: DesiredMark,
    /// The digest of its body.
    pub digest: Option<Digest>,
    /// The document that was refused last, with its digest, unless a later one was stored.
    pub refused: Option<(DesiredMark, Digest)>,
}

/// What becomes of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadVerdict {
    /// It is for another host.
    Foreign,
    /// It has no number.
    Unnumbered,
    /// The stored document is later.
    Older,
    /// It is the stored document.
    Known,
    /// It was refused before.
    RefusedBefore,
    /// It is refused, which the host reports.
    Refused(Diagnostic),
    /// Its body is wanted.
    Wanted,
}

/// Judges a head whose signature is valid.
#[must_use]
pub fn judge(head: &DesiredHead, host: HostId, known: &KnownDocument) -> HeadVerdict {
    let DesiredHead { mark, digest, .. } = head;
    if head.host != host {
        return HeadVerdict::Foreign;
    }
    if mark.epoch == 0 || mark.generation == 0 {
        return HeadVerdict::Unnumbered;
    }
    if *mark < known.mark && !planted!(TakeOlderDocument) {
        return HeadVerdict::Older;
    }
    if known.mark == *mark && known.digest.as_ref() == Some(digest) {
        return HeadVerdict::Known;
    }
    if known.refused.as_ref().is_some_and(|(refused, of)| refused == mark && of == digest) {
        return HeadVerdict::RefusedBefore;
    }
    if known.mark == *mark {
        return HeadVerdict::Refused(
            Diagnostic::new(format_args!("two documents have the number {mark}, and the other one is stored"))
                .with_hint(
                    "if the console was restored from a backup, `muster deployment confirm` continues in a new epoch",
                ),
        );
    }
    if head.size_bytes > BODY_MAX_BYTES as u64 {
        let size_bytes = head.size_bytes;
        return HeadVerdict::Refused(
            Diagnostic::new(format_args!("the document has {size_bytes} bytes; a host takes at most {BODY_MAX_BYTES}"))
                .with_hint("put fewer units on this host, or make their specs shorter"),
        );
    }
    HeadVerdict::Wanted
}

#[cfg(test)]
mod tests {
    use muster_topics::V1;

    use super::*;

    fn host() -> HostId {
        "00000000-0000-0000-0000-000000000001".parse().unwrap()
    }

    fn mark(epoch: u64, generation: u64) -> DesiredMark {
        DesiredMark { epoch, generation }
    }

    fn head(mark: DesiredMark, body: &str) -> DesiredHead {
        let (digest, size_bytes) = (Digest::of(body.as_bytes()), body.len() as u64);
        DesiredHead { v: V1, host: host(), mark, issued_ms: 0, digest, size_bytes }
    }

    #[test]
    fn only_a_later_document_of_this_host_is_wanted() {
        let known = KnownDocument {
            mark: mark(2, 5),
            digest: Some(Digest::of(b"a")),
            refused: Some((mark(2, 6), Digest::of(b"r"))),
        };
        let own = host();
        for (head, wanted) in [
            (DesiredHead { host: HostId::random(), ..head(mark(3, 1), "b") }, HeadVerdict::Foreign),
            (head(mark(2, 0), "b"), HeadVerdict::Unnumbered),
            (head(mark(0, 9), "b"), HeadVerdict::Unnumbered),
            (head(mark(1, 99), "b"), HeadVerdict::Older),
            (head(mark(2, 4), "a"), HeadVerdict::Older),
            (head(mark(2, 5), "a"), HeadVerdict::Known),
            (head(mark(2, 6), "r"), HeadVerdict::RefusedBefore),
            (head(mark(2, 6), "b"), HeadVerdict::Wanted),
            (head(mark(3, 1), "a"), HeadVerdict::Wanted),
        ] {
            assert_eq!(judge(&head, own, &known), wanted, "{head:?}");
        }
        let HeadVerdict::Refused(why) = judge(&head(mark(2, 5), "b"), own, &known) else {
            panic!("two with one number")
        };
        assert!(why.cause.contains("2.5") && why.hint.is_some(), "{why}");
        let long = DesiredHead { size_bytes: BODY_MAX_BYTES as u64 + 1, ..head(mark(2, 9), "b") };
        assert!(matches!(judge(&long, own, &known), HeadVerdict::Refused(_)));
        // A host without a document takes any.
        assert_eq!(judge(&head(mark(1, 1), "a"), own, &KnownDocument::default()), HeadVerdict::Wanted);
    }
}
