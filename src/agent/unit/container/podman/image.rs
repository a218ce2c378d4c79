//! Images: checks whether one is present, and pulls, imports or loads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use muster_rules::plan::Failure;
use muster_topics::{container::Image, diagnostic::Diagnostic, name::Digest};
use reqwest::{Body, Method, StatusCode};
use serde::Deserialize;

use super::http::{LOOK_MAX, SocketClient};
use crate::unit::failure::{may_heal, never};

/// How long an image that is not needed is kept, as artifacts are, for a rollback.
const KEPT: Duration = Duration::from_secs(24 * 3_600);

const ROOTFS: &str = "localhost/muster-rootfs";
const ARCHIVE: &str = "localhost/muster-archive";

/// The repository and tag of an image at the runtime, or the whole name that it was given.
fn called(image: &Image) -> (String, Option<String>) {
    match image {
        Image::Rootfs(artifact) => (ROOTFS.to_owned(), Some(artifact.sha256.to_string())),
        Image::Archive(artifact) => (ARCHIVE.to_owned(), Some(artifact.sha256.to_string())),
        // For an existing container no image is fetched.
        Image::Name(name) | Image::Existing(name) => (name.clone(), None),
    }
}

/// The same as one text.
pub(super) fn name(image: &Image) -> String {
    let (name, tag) = called(image);
    tag.map(|tag| format!("{name}:{tag}")).unwrap_or(name)
}

pub(super) async fn is_there(http: &SocketClient, image: &Image) -> Result<bool, Failure> {
    let name = name(image);
    let answer = http.ask(Method::GET, &format!("/images/{name}/json"), &[], None, LOOK_MAX).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Ok(false);
    }
    answer.accepted("look at the image", &name).map(|_| true)
}

pub(super) async fn bring(http: &SocketClient, image: &Image, file: Option<&Path>) -> Result<(), Failure> {
    let (name, tag) = called(image);
    let no_file = || never("an image that is an artifact comes from its file".to_owned());
    match (image, tag) {
        (Image::Rootfs(_), Some(tag)) => {
            // Podman accepts a tag only here.
            let repo = format!("{name}:{tag}");
            let query = [("fromSrc", "-"), ("repo", repo.as_str())];
            let body = open(file.ok_or_else(no_file)?).await?;
            let answer = http.post("/images/create", &query, body).await?.accepted("import", &name);
            answer.and_then(|answer| said(&answer.body)).map_err(not_imported)?;
        }
        (Image::Archive(_), Some(tag)) => {
            load(http, (&name, &tag), file.ok_or_else(no_file)?).await?;
        }
        _ => {
            // Without a tag Docker would pull all tags.
            let query: &[_] = if is_bare(&name) { &[("tag", "latest")] } else { &[] };
            let query = [&[("fromImage", name.as_str())], query].concat();
            let answer = http.post("/images/create", &query, Body::from(Vec::new())).await?;
            said(&answer.accepted("pull the image", &name)?.body).map(drop)?;
        }
    }
    // The answers differ; what counts is that the image exists then.
    if is_there(http, image).await? {
        return Ok(());
    }
    Err(may_heal(format!("the image {} was pulled and is missing", self::name(image))))
}

/// Whether the name of an image has neither a tag nor a digest. (A colon may also precede a port.)
fn is_bare(name: &str) -> bool {
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    !last.contains([':', '@'])
}

/// Loads an archive, and gives its image a name of ours. Loading also sets the name in the archive: that is given back
/// to the image that had it, or removed. **No other archive may be loaded meanwhile**, because it may contain the same
/// name.
async fn load(http: &SocketClient, ours: (&str, &str), file: &Path) -> Result<(), Failure> {
    let before = names(http).await?;
    let answer = http.post("/images/load", &[("quiet", "true")], open(file).await?).await?;
    let words = answer.accepted("load", "the archive").and_then(|answer| said(&answer.body)).map_err(not_loaded)?;
    let loaded = loaded_names(&words);
    let named = match &loaded[..] {
        [loaded] => tag(http, loaded, ours).await,
        _ => Err(never(format!("the archive does not have exactly one image: {}", words.join(" ").trim()))),
    };
    for name in loaded {
        match (before.get(&name), name.rsplit_once(':')) {
            (Some(id), Some(theirs)) => tag(http, id, theirs).await?,
            (None, Some(_)) if !name.starts_with("sha256:") => remove(http, &name).await?,
            _ => {}
        }
    }
    named
}

async fn tag(http: &SocketClient, image: &str, (repo, tag): (&str, &str)) -> Result<(), Failure> {
    let path = format!("/images/{image}/tag");
    let answer = http.ask(Method::POST, &path, &[("repo", repo), ("tag", tag)], None, LOOK_MAX).await?;
    answer.accepted("name the image", image).map(drop)
}

/// Explains why a root file system was not imported.
fn not_imported(failure: Failure) -> Failure {
    if ["unexpected EOF", "invalid tar header"].iter().any(|words| failure.error.cause.contains(words)) {
        return never(
            Diagnostic::new("the artifact is not a root file system that can be imported")
                .with_hint("use a tarball of a root file system, compressed or not"),
        );
    }
    failure
}

/// Explains why an archive was not loaded.
fn not_loaded(failure: Failure) -> Failure {
    let hint = "use an archive of one image, as `podman save` or `docker save` writes it; Docker before version 25 does not load archives in OCI's format";
    // Podman lists each format that it has tried; Docker the file that it missed.
    let is_none = ["does not match any of the supported image formats", "/json: no such file", "unexpected EOF"];
    if is_none.iter().any(|words| failure.error.cause.contains(words)) {
        let told = Diagnostic::new("the artifact is not an archive of an image that can be loaded");
        return never(told.with_hint(hint));
    }
    Failure { error: failure.error.with_hint(hint), ..failure }
}

/// Images that are not needed, by name, and since when.
#[derive(Debug, Default)]
pub(super) struct IdleImages(BTreeMap<String, Instant>);

impl IdleImages {
    /// Returns those of the existing images that were not needed for long.
    pub(super) fn past(&mut self, there: Vec<String>, needed: &BTreeSet<Digest>, now: Instant) -> Vec<String> {
        let is_needed = |name: &str| {
            let tag = name.rsplit_once(':').and_then(|(_, tag)| tag.parse::<Digest>().ok());
            // An image whose tag is no digest is not ours.
            tag.is_none_or(|tag| needed.contains(&tag))
        };
        let idle = there.into_iter().filter(|name| !is_needed(name));
        self.0 = idle.map(|name| (name.clone(), self.0.get(&name).copied().unwrap_or(now))).collect();
        let is_past = |(_, since): &(&String, &Instant)| now.saturating_duration_since(**since) >= KEPT;
        self.0.iter().filter(is_past).map(|(name, _)| name.clone()).collect()
    }
}

/// Returns the names of all images that are artifacts.
pub(super) async fn all(http: &SocketClient) -> Result<Vec<String>, Failure> {
    let names = names(http).await?.into_keys();
    Ok(names.filter(|name| [ROOTFS, ARCHIVE].iter().any(|ours| is_of(name, ours))).collect())
}

/// Returns the names of all images, each with its image's id.
async fn names(http: &SocketClient) -> Result<BTreeMap<String, String>, Failure> {
    #[derive(Deserialize)]
    struct ListedImage {
        #[serde(rename = "Id")]
        id: String,
        #[serde(default, rename = "RepoTags")]
        names: Option<Vec<String>>,
    }
    let answer = http.ask(Method::GET, "/images/json", &[], None, LOOK_MAX).await?;
    let listed: Vec<ListedImage> = answer.accepted("list", "images")?.json()?;
    let of = |image: ListedImage| image.names.unwrap_or_default().into_iter().map(move |name| (name, image.id.clone()));
    Ok(listed.into_iter().flat_map(of).collect())
}

fn is_of(name: &str, repository: &str) -> bool {
    name.strip_prefix(repository).is_some_and(|tag| tag.starts_with(':'))
}

/// Removes an image, unless a container uses it.
pub(super) async fn remove(http: &SocketClient, name: &str) -> Result<(), Failure> {
    let answer = http.ask(Method::DELETE, &format!("/images/{name}"), &[], None, LOOK_MAX).await?;
    if [StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&answer.status) {
        return Ok(());
    }
    answer.accepted("remove the image", name).map(drop)
}

async fn open(file: &Path) -> Result<Body, Failure> {
    let opened = tokio::fs::File::open(file).await;
    opened.map(Body::from).map_err(|error| may_heal(format!("{} cannot be read: {error}", file.display())))
}

/// Parses the progress of a transfer: lines of JSON, one of which may be an error, whatever the status was.
fn said(body: &[u8]) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct ProgressLine {
        #[serde(default)]
        stream: Option<String>,
        #[serde(default)]
        error: Option<String>,
    }
    let mut words = Vec::new();
    for line in serde_json::Deserializer::from_slice(body).into_iter::<ProgressLine>().map_while(Result::ok) {
        if let Some(error) = line.error.filter(|error| !error.is_empty()) {
            return Err(may_heal(format!("cannot get the image: {}", error.trim())));
        }
        words.extend(line.stream);
    }
    Ok(words)
}

/// Parses the names in `Loaded image: NAME`, or `Loaded image(s): NAME,NAME`, or `Loaded image ID: sha256:…`.
fn loaded_names(words: &[String]) -> Vec<String> {
    let lines = words.iter().flat_map(|words| words.lines());
    let names = lines.filter_map(|line| line.strip_prefix("Loaded image")?.split_once(": ").map(|(_, names)| names));
    let names = names.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned());
    // They become part of a path.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    names.filter(|name| !name.is_empty() && name.bytes().all(is_plain) && !name.contains("..")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_unused_for_a_day_are_removed() {
        let digests = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        let names = digests.each_ref().map(|digest| format!("{ROOTFS}:{digest}")).to_vec();
        let began = Instant::now();
        let at = |hours: u64| began + Duration::from_secs(hours * 3_600);
        let needed = |of: &[usize]| of.iter().map(|index| digests[*index].clone()).collect::<BTreeSet<_>>();
        let mut idle = IdleImages::default();
        let mut past = |of: &[usize], hours| idle.past(names.clone(), &needed(of), at(hours));
        assert_eq!(past(&[0, 1], 0), Vec::<String>::new());
        assert_eq!(past(&[0], 12), Vec::<String>::new());
        // One that was needed in between is kept.
        assert_eq!(past(&[0], 24), [names[2].clone()]);
        assert_eq!(past(&[0, 2], 30), Vec::<String>::new());
        assert_eq!(past(&[0], 36), [names[1].clone()]);
        assert_eq!(past(&[0], 48), [names[1].clone()]);
        // An image that somebody else has tagged is kept.
        assert_eq!(
            IdleImages::default().past(vec![format!("{ROOTFS}:latest")], &needed(&[]), at(99)),
            Vec::<String>::new()
        );
        assert!(is_of("localhost/muster-rootfs:1", ROOTFS) && !is_of("localhost/muster-rootfs2:1", ROOTFS));
    }

    #[test]
    fn ambiguous_image_names_are_completed() {
        for (name, bare) in [
            ("alpine", true),
            ("registry:5000/shop/web", true),
            ("registry:5000/shop/web:1", false),
            ("alpine@sha256:ab", false),
            ("alpine:3", false),
        ] {
            assert_eq!(is_bare(name), bare, "{name}");
        }
    }

    #[test]
    fn invalid_archive_is_refused() {
        for (said, heals) in [
            ("failed to load image: payload does not match any of the supported image formats:\n * oci: a", false),
            ("open /data/tmp/docker-import-1/blobs/json: no such file or directory", false),
            ("Error processing tar file(exit status 1): unexpected EOF", false),
            ("writing blob: write /data/layer: no space left on device", true),
        ] {
            let failure = not_loaded(may_heal(said));
            assert_eq!(failure.may_heal, heals, "{said}");
            assert!(
                failure.error.cause.lines().count() == 1
                    && failure.error.hint.as_ref().unwrap().contains("`podman save`"),
                "{}",
                failure.error
            );
        }
    }

    #[test]
    fn pull_progress_is_parsed() {
        let words = |body: &str| said(body.as_bytes()).map_err(|failure| failure.error);
        assert_eq!(words(""), Ok(vec![]));
        assert_eq!(words("{\"stream\":\"a\"}\n{\"status\":\"b\"}\n"), Ok(vec!["a".to_owned()]));
        assert!(
            words("{\"stream\":\"a\"}\n{\"error\":\"no such image\"}").unwrap_err().cause.contains("no such image")
        );
        for (line, wanted) in [
            ("Loaded image: docker.io/library/a:1\n", &["docker.io/library/a:1"][..]),
            ("Loaded image(s): a:1,b:2", &["a:1", "b:2"][..]),
            ("Loaded image ID: sha256:ab\n", &["sha256:ab"][..]),
            ("Loaded image: a/../b", &[][..]),
            ("Loading layer", &[][..]),
        ] {
            assert_eq!(loaded_names(&[line.to_owned()]), wanted, "{line}");
        }
    }
}
