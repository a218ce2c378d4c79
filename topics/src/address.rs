//! Addresses under which a host finds its fleet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most addresses of a broker, and of a console.
pub const ADDRESSES_MAX: usize = 8;
/// The longest address.
pub const ADDRESS_MAX_BYTES: usize = 512;

/// Addresses of broker and console, beside those from when the host joined, in the order in which they are tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Addresses {
    /// URLs of the broker, such as `mqtts://203.0.113.5:8883`.
    pub broker_urls: Vec<String>,
    /// Base URLs of the console's interface for hosts.
    pub console_urls: Vec<String>,
}

/// Whether a URL has a user or a password in it (`https://USER:PASSWORD@HOST/`): whoever may see the URL would see them.
#[must_use]
pub fn has_user_information(url: &str) -> bool {
    let Some((_, rest)) = url.split_once(':') else { return false };
    let rest = rest.trim_start_matches(['/', '\\']);
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    authority.contains('@')
}

impl Addresses {
    /// What makes them invalid, if anything does.
    ///
    /// # Errors
    /// If there are too many, or one is too long, not of its scheme, or has a password in it.
    pub fn check(&self) -> Result<(), String> {
        for (what, urls, schemes) in [
            ("broker", &self.broker_urls, &["mqtts://", "mqtt://"][..]),
            ("console", &self.console_urls, &["https://"][..]),
        ] {
            if urls.len() > ADDRESSES_MAX {
                return Err(format!("more than {ADDRESSES_MAX} addresses of the {what}"));
            }
            let is_bad =
                |url: &&String| url.len() > ADDRESS_MAX_BYTES || !schemes.iter().any(|scheme| url.starts_with(scheme));
            if urls.iter().any(|url| has_user_information(url)) {
                return Err(format!("an address of the {what} has a user or a password in it"));
            }
            if let Some(bad) = urls.iter().find(is_bad) {
                let bad: String = bad.chars().take(60).collect();
                return Err(format!(
                    "{bad:?} is not an address of the {what}: it must begin with {}",
                    schemes.join(" or ")
                ));
            }
        }
        Ok(())
    }
}

/// All addresses to try: the one from when the host joined first, and each once.
#[must_use]
pub fn candidates<'a>(joined: &'a str, more: &'a [String]) -> Vec<&'a str> {
    let mut all = vec![joined];
    for url in more {
        if !all.contains(&url.as_str()) {
            all.push(url);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_from_joining_is_first_and_each_is_tried_once() {
        let more = ["mqtts://b:1", "mqtts://a:1", "mqtts://b:1"].map(str::to_owned);
        assert_eq!(candidates("mqtts://a:1", &more), ["mqtts://a:1", "mqtts://b:1"]);
        assert_eq!(candidates("mqtts://a:1", &[]), ["mqtts://a:1"]);
    }

    #[test]
    fn odd_addresses_are_refused() {
        let of = |broker: &str, console: &str| Addresses {
            broker_urls: vec![broker.to_owned()],
            console_urls: vec![console.to_owned()],
        };
        assert_eq!(of("mqtts://h:8883", "https://h:7443").check(), Ok(()));
        assert!(of("https://h", "https://h").check().is_err());
        assert!(of("mqtts://h", "http://h").check().is_err());
        assert!(of(&format!("mqtts://{}", "h".repeat(600)), "https://h").check().is_err());
        let many = Addresses { console_urls: vec!["https://h".to_owned(); 9], ..Addresses::default() };
        assert!(many.check().is_err());
    }
}
