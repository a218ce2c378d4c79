//! Topics, filters and client ids: what is well formed, and what matches.

/// The longest topic or filter, in bytes. The contract's longest has 200; the router copies each into several maps.
pub(crate) const TOPIC_MAX_BYTES: usize = 1024;

/// The longest part of a client id behind the common name, in bytes: a UUID has 36.
pub(crate) const INSTANCE_MAX_BYTES: usize = 64;

/// Whether a message may be published to `topic`, as far as its form goes.
pub(crate) fn is_topic(topic: &str) -> bool {
    is_plain(topic) && !topic.contains(['+', '#'])
}

/// Whether `filter` is one: wildcards stand alone in their level, and `#` in the last.
pub(crate) fn is_filter(filter: &str) -> bool {
    let mut levels = filter.split('/').rev();
    let last = levels.next().unwrap_or_default();
    is_plain(filter)
        && (matches!(last, "#" | "+") || !last.contains(['+', '#']))
        && levels.all(|level| level == "+" || !level.contains(['+', '#']))
}

/// MQTT forbids NUL, and lets a server refuse the other control characters, which only ever mislead a reader of logs.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= TOPIC_MAX_BYTES && !text.chars().any(char::is_control)
}

/// Whether `text` may stand behind the common name in a client id.
pub(crate) fn is_instance(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= INSTANCE_MAX_BYTES
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether `topic` matches `filter`: the plain rule, against which trees are tested. Topics that begin with `$` are outside every prefix and so never get here.
#[cfg(test)]
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    let mut topic = topic.split('/');
    for level in filter.split('/') {
        if level == "#" {
            return true;
        }
        match topic.next() {
            Some(given) if level == "+" || level == given => (),
            _ => return false,
        }
    }
    topic.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_filters() {
        for (text, topic, filter) in [
            ("a", true, true),
            ("a/b", true, true),
            ("/", true, true),
            ("a//b", true, true),
            ("é/x", true, true),
            ("", false, false),
            ("a\0b", false, false),
            ("a\nb", false, false),
            ("+", false, true),
            ("#", false, true),
            ("a/+/b", false, true),
            ("a/#", false, true),
            ("a#b", false, false),
            ("a/b#", false, false),
            ("a/#/b", false, false),
            ("#/", false, false),
            ("a+/b", false, false),
            ("a/b+", false, false),
            ("a/++", false, false),
        ] {
            assert_eq!((is_topic(text), is_filter(text)), (topic, filter), "{text:?}");
        }
        let long = "a".repeat(TOPIC_MAX_BYTES + 1);
        assert!(!is_topic(&long) && !is_filter(&long));
    }

    #[test]
    fn matching() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b", "a", false),
            ("a/+", "a/b", true),
            ("a/+", "a", false),
            ("a/+", "a/", true),
            ("+/b", "a/b", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/#", "ab", false),
            ("#", "a/b", true),
            ("+", "a/b", false),
            ("a/+/c/#", "a/b/c", true),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }
}
