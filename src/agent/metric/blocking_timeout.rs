//! Runs a blocking call that may hang, with a timeout.
//!
//! **Invariant: a hanging call blocks nothing else.** A call to a file system may hang forever (a lost network mount, a
//! broken disk), so a short-lived thread makes it. Until it returns there is no second call and no value.
//! [`BlockingProbes`] holds several that hang independently.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use tokio::sync::oneshot;

/// How long a sample waits for an answer; it usually takes less than a thousandth of that.
const PATIENCE: Duration = Duration::from_millis(200);
/// A small stack that suffices: paths of mounts are on the heap.
const STACK_BYTES: usize = 128 * 1024;
/// The most probes of a set, including hanging ones of file systems that were unmounted: each costs a thread.
const LOOKS_MAX: usize = 64;

/// A blocking call that is made repeatedly; remembers whether an earlier one is still running.
#[derive(Debug)]
pub(super) struct BlockingProbe<T> {
    /// The name for the log.
    what: &'static str,
    pending: Option<oneshot::Receiver<T>>,
}

impl<T: Send + 'static> BlockingProbe<T> {
    pub(super) fn at(what: &'static str) -> Self {
        Self { what, pending: None }
    }

    /// Whether an earlier call has not returned yet.
    fn is_pending(&mut self) -> bool {
        let is_open =
            |pending: &mut oneshot::Receiver<T>| matches!(pending.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        self.pending.as_mut().is_some_and(is_open)
    }

    /// Makes the call; `None` if it does not return in time.
    pub(super) async fn take(&mut self, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        // A late result is outdated.
        if self.is_pending() {
            return None;
        }
        let (answer, mut pending) = oneshot::channel();
        let look = move || {
            // The receiver has ended if the agent ends.
            let _ = answer.send(look());
        };
        let thread = std::thread::Builder::new().name("look".to_owned()).stack_size(STACK_BYTES).spawn(look);
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to look at {}", self.what);
        }
        if let Ok(seen) = tokio::time::timeout(PATIENCE, &mut pending).await {
            self.pending = None;
            seen.ok()
        } else {
            tracing::warn!(hint = "look for mounts that hang, with `df`", "{} does not answer", self.what,);
            self.pending = Some(pending);
            None
        }
    }
}

/// Blocking calls for several things of one kind, by key.
#[derive(Debug)]
pub(super) struct BlockingProbes<T> {
    what: &'static str,
    each: BTreeMap<String, BlockingProbe<T>>,
}

impl<T: Send + 'static> BlockingProbes<T> {
    /// Creates an empty set.
    pub(super) fn at(what: &'static str) -> Self {
        Self { what, each: BTreeMap::new() }
    }

    /// Makes all calls at once. Those that do not return in time have no result, nor do any while too many hang.
    pub(super) async fn take<F: FnOnce() -> T + Send + 'static>(
        &mut self,
        questions: Vec<(String, F)>,
    ) -> BTreeMap<String, Option<T>> {
        let mut questions: BTreeMap<String, F> = questions.into_iter().collect();
        self.each.retain(|key, look| questions.contains_key(key) || look.is_pending());
        for key in questions.keys() {
            if self.each.len() < LOOKS_MAX && !self.each.contains_key(key) {
                self.each.insert(key.clone(), BlockingProbe::at(self.what));
            }
        }
        let answers = self.each.iter_mut().filter_map(|(key, look)| {
            let question = questions.remove(key)?;
            Some(async { (key.clone(), look.take(question).await) })
        });
        join_all(answers).await.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hanging_call_is_not_repeated() {
        let (late, pending) = oneshot::channel();
        let mut look = BlockingProbe { what: "disks", pending: Some(pending) };
        for _ in 0..3 {
            assert_eq!(look.take(|| 7).await, None, "the first question is still open");
        }
        late.send(1).unwrap();
        assert_eq!(look.take(|| 7).await, Some(7), "what came late is old");
    }

    #[tokio::test]
    async fn wait_is_bounded() {
        let (go_on, wait) = std::sync::mpsc::channel();
        let mut look = BlockingProbe::at("disks");
        let hangs = move || {
            wait.recv().unwrap();
            7
        };
        assert_eq!(look.take(hangs).await, None);
        assert_eq!(look.take(|| 8).await, None);
        go_on.send(()).unwrap();
        while look.take(|| 9).await != Some(9) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn hanging_call_does_not_delay_others() {
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let mut looks: BlockingProbes<u32> = BlockingProbes::at("disks");
        let hangs: Box<dyn FnOnce() -> u32 + Send> = Box::new(move || {
            let _ = wait.recv();
            1
        });
        let answers = |value: u32| -> Box<dyn FnOnce() -> u32 + Send> { Box::new(move || value) };
        let seen = looks.take(vec![("a".to_owned(), hangs), ("b".to_owned(), answers(2))]).await;
        assert_eq!(seen, [("a".to_owned(), None), ("b".to_owned(), Some(2))].into());
        // It is not mounted any more: the hanging thread is remembered, and there will be no second one if it comes
        // back.
        assert_eq!(looks.take(vec![("b".to_owned(), answers(3))]).await, [("b".to_owned(), Some(3))].into());
        assert_eq!(looks.take(vec![("a".to_owned(), answers(4))]).await, [("a".to_owned(), None)].into());
        drop(go_on);
        while looks.take(vec![("a".to_owned(), answers(5))]).await != [("a".to_owned(), Some(5))].into() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn hanging_calls_are_limited() {
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let mut looks: BlockingProbes<()> = BlockingProbes::at("disks");
        for round in 0..2 {
            let hang = |index: usize| {
                let wait = std::sync::Arc::clone(&wait);
                (format!("{round} {index}"), move || {
                    let _ = wait.lock().unwrap().recv();
                })
            };
            let seen = looks.take((0..LOOKS_MAX).map(hang).collect()).await;
            assert!(looks.each.len() <= LOOKS_MAX && seen.values().all(Option::is_none));
        }
        drop(go_on);
    }
}
