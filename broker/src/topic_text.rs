//! Topics, filters and client ids: validation and matching.

/// The longest part of a client id after the common name, in bytes: a UUID has 36.
pub(crate) const INSTANCE_MAX_BYTES: usize = 64;

/// The limits of topics and filters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopicForm {
    pub(crate) max_bytes: usize,
    pub(crate) max_levels: usize,
}

impl TopicForm {
    /// Whether `topic` is a valid topic of a message.
    pub(crate) fn is_topic(self, topic: &str) -> bool {
        self.is_plain(topic) && !topic.contains(['+', '#'])
    }

    /// Whether `filter` is valid: wildcards are alone in their level, and `#` in the last.
    pub(crate) fn is_filter(self, filter: &str) -> bool {
        let mut levels = filter.split('/').rev();
        let last = levels.next().unwrap_or_default();
        self.is_plain(filter)
            && (matches!(last, "#" | "+") || !last.contains(['+', '#']))
            && levels.all(|level| level == "+" || !level.contains(['+', '#']))
    }

    /// Whether there are no control characters: MQTT forbids NUL and allows servers to refuse the others, which only
    /// mislead readers of logs.
    fn is_plain(self, text: &str) -> bool {
        !text.is_empty()
            && text.len() <= self.max_bytes
            && text.bytes().filter(|byte| *byte == b'/').count() < self.max_levels
            && !text.chars().any(char::is_control)
    }
}

/// Whether a topic or filter is about the broker itself.
pub(crate) fn is_system(text: &str) -> bool {
    text.strip_prefix("$SYS").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a filter is a shared subscription.
pub(crate) fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/")
}

/// Whether `text` may follow the common name in a client id.
pub(crate) fn is_instance(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= INSTANCE_MAX_BYTES
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether `topic` matches `filter`. A wildcard in the first level matches no topic that begins with `$`.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
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

    const FORM: TopicForm = TopicForm { max_bytes: 20, max_levels: 4 };

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
            assert_eq!((FORM.is_topic(text), FORM.is_filter(text)), (topic, filter), "{text:?}");
        }
        for (text, expected) in [
            ("a".repeat(20), true),
            ("a".repeat(21), false),
            ("a/b/c/d".to_owned(), true),
            ("a/b/c/d/e".to_owned(), false),
        ] {
            assert_eq!((FORM.is_topic(&text), FORM.is_filter(&text)), (expected, expected), "{text:?}");
        }
    }

    #[test]
    fn filters_match_topics() {
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
            ("#", "$SYS/a", false),
            ("+/a", "$SYS/a", false),
            ("$SYS/#", "$SYS/a", true),
            ("$SYS/+", "$SYS/a", true),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }
}
