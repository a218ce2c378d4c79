//! Runtime for Podman and Docker, through the HTTP API that both offer on a Unix socket.
//!
//! Images that are artifacts are tagged with their SHA-256: `localhost/muster-rootfs:<sha256>` was imported from a root
//! file system, `localhost/muster-archive:<sha256>` loaded from an archive. So an image is brought only once.

mod http;
mod image;
mod logs;
mod wire;

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use muster_rules::plan::Failure;
use muster_topics::{
    Millis,
    command::LogView,
    container::{self, ContainerSpec, Image},
    diagnostic::Diagnostic,
    name::Digest,
    process::Limits,
    signal::Signal,
};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::sync::OnceCell;

use self::http::LOOK_MAX;
use self::http::SocketClient;
use super::super::failure::never;
use super::runtime::{
    ContainerPhase, ContainerRuntime, ContainersById, ListedContainer, Recipe, RuntimeFuture, RuntimeLogFrom,
    RuntimeState,
};
use crate::unit::{
    log::{self, LogPart, LogPosition},
    turns::{ResourceClass, Turns},
};

/// The timeout for requests that create layers, cgroups and networks; below a start's own deadline.
const WORK_MAX: Duration = Duration::from_secs(25);

/// Podman or Docker.
pub(super) struct Podman {
    http: SocketClient,
    /// Whether it is Podman, once that is known.
    is_podman: OnceCell<bool>,
    /// Since when images were not needed.
    idle: Mutex<image::IdleImages>,
    /// Whoever loads an archive has the turn.
    turns: Turns,
}

impl Podman {
    pub(super) fn new(socket: &Path, turns: Turns) -> io::Result<Self> {
        Ok(Self { http: SocketClient::new(socket)?, is_podman: OnceCell::new(), idle: Mutex::default(), turns })
    }

    /// Whether it is Podman: Docker changes limits differently.
    async fn is_podman(&self) -> Result<bool, Failure> {
        let ask = async {
            let answer = self.http.ask(Method::GET, "/version", &[], None, LOOK_MAX).await?;
            let version: wire::VersionAnswer = answer.json()?;
            Ok::<_, Failure>(version.components.iter().any(|component| component.name.starts_with("Podman")))
        };
        self.is_podman.get_or_try_init(|| ask).await.copied()
    }

    async fn inspect(&self, name: &str) -> Result<Option<RuntimeState>, Failure> {
        let answer = self.http.ask(Method::GET, &format!("/containers/{name}/json"), &[], None, LOOK_MAX).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let seen: wire::InspectedContainer = answer.accepted("look at the container", name)?.json()?;
        Ok(Some(seen.into_state()))
    }

    /// Returns its limits, and its first process.
    async fn details(&self, id: &str) -> Result<(Limits, Option<(i32, u64)>), Failure> {
        let answer = self.http.ask(Method::GET, &format!("/containers/{id}/json"), &[], None, LOOK_MAX).await?;
        // A container that was removed meanwhile has neither.
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(<_>::default());
        }
        let seen: wire::InspectedContainer = answer.accepted("look at the container", id)?.json()?;
        Ok((seen.limits(), seen.process()))
    }

    async fn lines(&self, name: &str, asked: &[(&str, u64)]) -> Result<Vec<logs::ContainerLogLine>, Failure> {
        let asked: Vec<(&str, String)> = asked.iter().map(|(key, value)| (*key, value.to_string())).collect();
        let mut query = vec![("stdout", "true"), ("stderr", "true"), ("timestamps", "true")];
        query.extend(asked.iter().map(|(key, value)| (*key, value.as_str())));
        let answer = self.http.ask(Method::GET, &format!("/containers/{name}/logs"), &query, None, LOOK_MAX).await?;
        Ok(logs::read(&answer.accepted("read the log of the container", name)?.body))
    }

    async fn act(
        &self,
        method: Method,
        name: &str,
        what: &str,
        query: &[(&str, &str)],
    ) -> Result<http::HttpAnswer, Failure> {
        let slash = if what.is_empty() { "" } else { "/" };
        self.http.ask(method, &format!("/containers/{name}{slash}{what}"), query, None, WORK_MAX).await
    }

    async fn limit(&self, name: &str, limits: Limits) -> Result<bool, Failure> {
        let (path, body) = if self.is_podman().await? {
            (format!("/v4.0.0/libpod/containers/{name}/update"), wire::podman_limits(limits))
        } else {
            (format!("/containers/{name}/update"), json!(wire::ResourceLimits::of(limits)))
        };
        let answer = self.http.ask(Method::POST, &path, &[], Some(&body), WORK_MAX).await?;
        if !answer.status.is_success() {
            tracing::info!(container = name, why = %answer.message(), "its limits cannot change while it runs");
        }
        Ok(answer.status.is_success())
    }
}

impl ContainerRuntime for Podman {
    fn which(&self) -> container::Runtime {
        container::Runtime::Podman
    }

    fn cannot(&self, _: &ContainerSpec) -> Option<Diagnostic> {
        // This covers everything.
        None
    }

    fn has_image<'a>(&'a self, image: &'a Image) -> RuntimeFuture<'a, bool> {
        image::is_there(&self.http, image).boxed()
    }

    fn bring_image<'a>(&'a self, image: &'a Image, file: Option<&'a Path>) -> RuntimeFuture<'a, ()> {
        async move {
            // One archive at a time, because several may contain the same name.
            let _alone = match image {
                Image::Archive(_) => Some(self.turns.take(ResourceClass::Images).await),
                _ => None,
            };
            image::bring(&self.http, image, file).await
        }
        .boxed()
    }

    fn sweep<'a>(&'a self, needed: &'a BTreeSet<Digest>) -> RuntimeFuture<'a, ()> {
        async move {
            let there = image::all(&self.http).await?;
            let past = self.idle.lock().unwrap_or_else(PoisonError::into_inner).past(there, needed, Instant::now());
            for name in past {
                tracing::info!(image = name, "an image was not used for a day");
                image::remove(&self.http, &name).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, Option<RuntimeState>> {
        self.inspect(name).boxed()
    }

    fn create<'a>(&'a self, name: &'a str, recipe: &'a Recipe) -> RuntimeFuture<'a, ()> {
        async move {
            let body = json!(wire::CreateBody::of(recipe));
            let query = [("name", name)];
            let answer = self.http.ask(Method::POST, "/containers/create", &query, Some(&body), WORK_MAX).await?;
            let made = answer.accepted("create the container", name);
            made.map(drop).map_err(|failure| if recipe.disk_bytes.is_some() { about_disk(failure) } else { failure })
        }
        .boxed()
    }

    fn start<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()> {
        async move {
            let answer = self.act(Method::POST, name, "start", &[]).await?;
            // Another request was faster.
            if answer.status == StatusCode::NOT_MODIFIED {
                return Ok(());
            }
            answer.accepted("start the container", name).map(drop)
        }
        .boxed()
    }

    fn signal<'a>(&'a self, name: &'a str, signal: Signal) -> RuntimeFuture<'a, bool> {
        async move {
            let signal = signal.to_string();
            let answer = self.act(Method::POST, name, "kill", &[("signal", &signal)]).await?;
            let Err(refused) = answer.accepted("send a signal to the container", name) else { return Ok(true) };
            // The runtimes report a container that does not run differently.
            let runs =
                self.inspect(name).await?.is_some_and(|state| matches!(state.phase, ContainerPhase::Runs { .. }));
            if runs { Err(refused) } else { Ok(false) }
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, name: &'a str, frozen: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let (what, words) = if frozen { ("pause", "suspend") } else { ("unpause", "let go on") };
            let answer = self.act(Method::POST, name, what, &[]).await?;
            let refused = match answer.accepted(&format!("{words} the container"), name) {
                Ok(_) => return Ok(()),
                Err(refused) => refused,
            };
            // Being in the wanted state already is no failure.
            let state = self.inspect(name).await?;
            let is_so = state.is_some_and(
                |state| matches!(state.phase, super::runtime::ContainerPhase::Runs { frozen: is, .. } if is == frozen),
            );
            if is_so { Ok(()) } else { Err(refused) }
        }
        .boxed()
    }

    fn limit<'a>(&'a self, name: &'a str, limits: Limits) -> RuntimeFuture<'a, bool> {
        self.limit(name, limits).boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()> {
        async move {
            let answer = self.act(Method::DELETE, name, "", &[("force", "true"), ("v", "true")]).await?;
            if answer.status == StatusCode::NOT_FOUND {
                return Ok(());
            }
            answer.accepted("remove the container", name).map(drop)
        }
        .boxed()
    }

    fn is_there(&self) -> bool {
        self.http.socket().exists()
    }

    fn list<'a>(&'a self, known: &'a ContainersById) -> RuntimeFuture<'a, ContainersById> {
        async move {
            let answer = self.http.ask(Method::GET, "/containers/json", &[("all", "true")], None, LOOK_MAX).await?;
            let listed: Vec<wire::ContainerListItem> = answer.accepted("list", "containers")?.json()?;
            let mut all = ContainersById::new();
            for one in listed {
                let (id, mut one) = one.into_listed();
                // A running container may have been restarted since.
                let is_same = |before: &&ListedContainer| {
                    before.state == one.state && before.process.is_none_or(muster_shim::process_identity::is_still)
                };
                (one.limits, one.process) = match known.get(&id).filter(is_same) {
                    Some(before) => (before.limits, before.process),
                    None => self.details(&id).await?,
                };
                all.insert(id, one);
            }
            Ok(all)
        }
        .boxed()
    }

    fn log<'a>(&'a self, name: &'a str, from: RuntimeLogFrom, view: LogView) -> RuntimeFuture<'a, LogPart> {
        let second = |at_ms: Millis| u64::try_from(at_ms.div_euclid(1_000)).unwrap_or(0);
        async move {
            let most = match from {
                RuntimeLogFrom::After(place) => {
                    let lines =
                        logs::after(self.lines(name, &[("since", logs::second(place.at()))]).await?, place.at());
                    let view = LogView { times: view.times, ..LogView::default() };
                    let text = lines.text(&view, place.is_open());
                    let open = text.last().map_or(place.is_open(), |byte| *byte != b'\n');
                    return Ok(LogPart { text, place: LogPosition::of(lines.mark, open), ..LogPart::default() });
                }
                RuntimeLogFrom::Last(most) => most,
            };
            let lines = match (view.since_ms, view.until_ms) {
                (None, None) => {
                    // Its last second may be incomplete, and positions count the lines of a second.
                    let last = self.lines(name, &[("tail", u64::from(most.max(1)))]).await?;
                    match last.last().map(|line| line.at_s) {
                        Some(at_s) => logs::joined(last, self.lines(name, &[("since", at_s)]).await?),
                        None => logs::ContainerLogLines::default(),
                    }
                }
                (since_ms, until_ms) => {
                    let since = since_ms.map(|at_ms| ("since", second(at_ms)));
                    // The request has whole seconds; the view filters further.
                    let until = until_ms.map(|at_ms| ("until", second(at_ms) + 1));
                    let asked: Vec<(&str, u64)> = since.into_iter().chain(until).collect();
                    logs::joined(self.lines(name, &asked).await?, Vec::new())
                }
            };
            let whole = format!("`podman logs {name}`, or docker's");
            let wanted = usize::try_from(most).unwrap_or(usize::MAX);
            let text = lines.text(&view, false);
            let open = text.last().is_some_and(|byte| *byte != b'\n');
            let part = log::last_lines(text, (wanted, false), &view, log::TAIL_MAX_BYTES, &whole);
            Ok(LogPart { place: LogPosition::of(lines.mark, open), ..part })
        }
        .boxed()
    }
}

/// Explains a refusal of a disk limit, which few storage drivers support.
fn about_disk(failure: Failure) -> Failure {
    // Podman's and Docker's words for that.
    if !["storage-opt", "quota"].iter().any(|word| failure.error.cause.contains(word)) {
        return failure;
    }
    let told = failure.error.within("unsupported by podman: disk_bytes");
    never(told.with_hint("a storage on xfs that is mounted with pquota supports it"))
}
