//! Turns: how many units of this host are changed at once, by the resource that a change needs.
//!
//! A kind takes a turn of its class for as long as it changes something. Units of one class wait for each other in the order in
//! which they came; units of different classes do not. What has no class here (processes, downloads, templates, validators)
//! goes on in parallel. What changes owe is done one after the other by its own task ([`super::owed`]).

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// What a change needs, and cannot be shared with any number of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceClass {
    /// The host's packages.
    Packages,
    /// The images of a container runtime.
    Images,
    /// Files of the host.
    Files,
}

impl ResourceClass {
    const ALL: [Self; 3] = [Self::Packages, Self::Images, Self::Files];

    /// How many have their turn at once.
    const fn at_once(self) -> usize {
        match self {
            // The package manager has one lock, and what it does depends on what is installed.
            Self::Packages => 1,
            // Several archives may contain the same name.
            Self::Images => 1,
            // Each path has one unit. More would make a slow disk slower.
            Self::Files => 8,
        }
    }
}

/// The turns of all classes. A clone shares them.
#[derive(Clone)]
pub(super) struct Turns(Arc<[Semaphore; ResourceClass::ALL.len()]>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(ResourceClass::ALL.map(|class| Semaphore::new(class.at_once()))))
    }
}

impl Turns {
    /// Waits for a turn, which lasts until it is dropped. Cancel-safe: who does not wait any more loses its place.
    pub(super) async fn take(&self, class: ResourceClass) -> Turn<'_> {
        // No semaphore is ever closed.
        Turn { _permit: self.of(class).acquire().await.ok() }
    }

    /// Takes a turn, if one is free.
    pub(super) fn try_take(&self, class: ResourceClass) -> Option<Turn<'_>> {
        let permit = self.of(class).try_acquire().ok()?;
        Some(Turn { _permit: Some(permit) })
    }

    fn of(&self, class: ResourceClass) -> &Semaphore {
        &self.0[class as usize]
    }
}

/// A turn.
pub(super) struct Turn<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    /// Has twenty units of a class work; returns how many did so at once.
    async fn most_at_once(turns: &Turns, class: ResourceClass) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || async {
            let _turn = turns.take(class).await;
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::Relaxed);
        };
        futures_util::future::join_all((0..20).map(|_| work())).await;
        most.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn each_class_has_its_number_of_turns() {
        let turns = Turns::default();
        let [packages, images, files] = ResourceClass::ALL.map(|class| most_at_once(&turns, class));
        assert_eq!(tokio::join!(packages, images, files), (1, 1, 8));
    }

    #[tokio::test]
    async fn classes_do_not_wait_for_each_other_and_a_place_that_is_given_up_is_free() {
        let turns = Turns::default();
        let first = turns.take(ResourceClass::Packages).await;
        assert!(turns.try_take(ResourceClass::Packages).is_none() && turns.try_take(ResourceClass::Files).is_some());
        let waiting = tokio::time::timeout(Duration::from_millis(20), turns.take(ResourceClass::Packages)).await;
        assert!(waiting.is_err());
        drop(first);
        assert!(turns.try_take(ResourceClass::Packages).is_some());
    }
}
