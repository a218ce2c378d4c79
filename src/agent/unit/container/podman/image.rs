//! Images: whether one is there, and how it comes there.

use std::path::Path;

use muster_topics::container::Image;
use reqwest::{Body, Method, StatusCode};
use serde::Deserialize;

use super::{LOOK_MAX, http::Http};
use crate::{
    agent::unit::container::{may_heal, never},
    rules::plan::Failure,
};

const ROOTFS: &str = "localhost/muster-rootfs";
const ARCHIVE: &str = "localhost/muster-archive";

/// What an image is called there: repository and tag, or all of the name that it was given.
fn called(image: &Image) -> (String, Option<String>) {
    match image {
        Image::Rootfs(artifact) => (ROOTFS.to_owned(), Some(artifact.sha256.to_string())),
        Image::Archive(artifact) => (ARCHIVE.to_owned(), Some(artifact.sha256.to_string())),
        Image::Name(name) => (name.clone(), None),
    }
}

/// The same, in one word.
pub(super) fn name(image: &Image) -> String {
    let (name, tag) = called(image);
    tag.map(|tag| format!("{name}:{tag}")).unwrap_or(name)
}

pub(super) async fn is_there(http: &Http, image: &Image) -> Result<bool, Failure> {
    let name = name(image);
    let answer = http.ask(Method::GET, &format!("/images/{name}/json"), &[], None, LOOK_MAX).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Ok(false);
    }
    answer.accepted("look at the image", &name).map(|_| true)
}

pub(super) async fn bring(http: &Http, image: &Image, file: Option<&Path>) -> Result<(), Failure> {
    let (name, tag) = called(image);
    let no_file = || never("an image that is an artifact comes from its file".to_owned());
    match (image, tag) {
        (Image::Rootfs(_), Some(tag)) => {
            // Podman takes a tag nowhere else.
            let repo = format!("{name}:{tag}");
            let query = [("fromSrc", "-"), ("repo", repo.as_str())];
            let body = open(file.ok_or_else(no_file)?).await?;
            said(&http.post("/images/create", &query, body).await?.accepted("import", &name)?.body).map(drop)?;
        }
        (Image::Archive(_), Some(tag)) => {
            let body = open(file.ok_or_else(no_file)?).await?;
            let answer = http.post("/images/load", &[("quiet", "true")], body).await?;
            let loaded = said(&answer.accepted("load", "the archive")?.body)?;
            let [loaded] = &loaded_names(&loaded)[..] else {
                return Err(never(format!("the archive is not of one image: {}", loaded.join(" "))));
            };
            let query = [("repo", name.as_str()), ("tag", tag.as_str())];
            let path = format!("/images/{loaded}/tag");
            http.ask(Method::POST, &path, &query, None, LOOK_MAX).await?.accepted("name the image", loaded)?;
        }
        _ => {
            let body = Body::from(Vec::new());
            let answer = http.post("/images/create", &[("fromImage", name.as_str())], body).await?;
            said(&answer.accepted("pull the image", &name)?.body).map(drop)?;
        }
    }
    // What it says is not the same everywhere; what is there then is.
    if is_there(http, image).await? {
        return Ok(());
    }
    Err(may_heal(format!("the image {} was brought, and is not there", self::name(image))))
}

async fn open(file: &Path) -> Result<Body, Failure> {
    let opened = tokio::fs::File::open(file).await;
    opened.map(Body::from).map_err(|error| may_heal(format!("{} cannot be read: {error}", file.display())))
}

/// What is said while an image comes: lines of JSON, of which one may be an error, whatever the answer began with.
fn said(body: &[u8]) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct Line {
        #[serde(default)]
        stream: Option<String>,
        #[serde(default)]
        error: Option<String>,
    }
    let mut words = Vec::new();
    for line in serde_json::Deserializer::from_slice(body).into_iter::<Line>().map_while(Result::ok) {
        if let Some(error) = line.error.filter(|error| !error.is_empty()) {
            return Err(may_heal(format!("the image cannot be had: {}", error.trim())));
        }
        words.extend(line.stream);
    }
    Ok(words)
}

/// The names in `Loaded image: NAME`, or `Loaded image(s): NAME,NAME`, or `Loaded image ID: sha256:…`.
fn loaded_names(words: &[String]) -> Vec<String> {
    let lines = words.iter().flat_map(|words| words.lines());
    let names = lines.filter_map(|line| line.strip_prefix("Loaded image")?.split_once(": ").map(|(_, names)| names));
    let names = names.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned());
    // They are part of a path.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    names.filter(|name| !name.is_empty() && name.bytes().all(is_plain) && !name.contains("..")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_while_an_image_comes() {
        let words = |body: &str| said(body.as_bytes()).map_err(|failure| failure.error);
        assert_eq!(words(""), Ok(vec![]));
        assert_eq!(words("{\"stream\":\"a\"}\n{\"status\":\"b\"}\n"), Ok(vec!["a".to_owned()]));
        assert!(words("{\"stream\":\"a\"}\n{\"error\":\"no such image\"}").unwrap_err().contains("no such image"));
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
