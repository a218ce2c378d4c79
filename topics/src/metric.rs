//! Metric batches: InfluxDB line protocol, so that any bridge from MQTT to a database can read them.
//!
//! The first line is a comment that names the batch (`# v=1 epoch=3 seq=17`); the rest are points
//! with times in milliseconds. A batch is packed by default (`pack`), which its first two bytes show.
//!
//! Tags that follow the number in the comment apply to all lines that do not have them
//! (`# v=1 epoch=3 seq=17 hostname=shop-0042`). A packed batch has its `hostname` there, and no `host`, because its
//! topic has it; a plain one has both in each line, for readers that skip comments.
//!
//! A series is identified by its name, `measurement_field`, and its tags. Names follow Prometheus's
//! conventions: `muster_host_cpu_busy_ratio` is the field `busy_ratio` of `muster_host_cpu`.
//!
//! Source of the format: <https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/>

mod pack;

use std::fmt::Write as _;

pub use self::pack::pack;
use self::pack::unpack;
use crate::{Millis, PAYLOAD_MAX_BYTES, ack::Numbered};

/// The largest batch after decompression: sixteen times a message, which no batch of an agent approaches, and a few
/// compressed bytes cannot exceed.
pub const UNPACKED_MAX_BYTES: usize = 16 * PAYLOAD_MAX_BYTES;

/// The most bytes of tags that the first line may have for all lines: a hostname of 253 and some more. Each of a
/// batch's at most 131,072 lines gets them.
const SHARED_MAX_BYTES: usize = 320;

/// One line: values of one measurement at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The measurement, such as `muster_host_cpu`.
    pub measurement: String,
    /// Names and values that identify the series, sorted by name; no empty values.
    pub tags: Vec<(String, String)>,
    /// Names of fields, such as `busy_ratio`, and their values, all finite.
    pub fields: Vec<(String, f64)>,
    /// When they were measured.
    pub at_ms: Millis,
}

impl Point {
    /// Creates a point without fields. Empty tags are left out, because the format has none.
    #[must_use]
    pub fn new(measurement: &str, tags: &[(&str, &str)], at_ms: Millis) -> Self {
        let mut tags: Vec<_> = tags
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        tags.sort();
        Self { measurement: measurement.to_owned(), tags, fields: Vec::new(), at_ms }
    }

    /// Adds a field; a value that is not finite is left out, because the format has none.
    #[must_use]
    pub fn field(mut self, name: &str, value: f64) -> Self {
        if value.is_finite() {
            self.fields.push((name.to_owned(), value));
        }
        self
    }
}

/// Why a batch cannot be parsed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum BatchError {
    /// The compressed data is damaged, or exceeds [`UNPACKED_MAX_BYTES`].
    #[error("the batch cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// It is packed with this dictionary, which is an unknown one.
    #[error("the batch cannot be unpacked: it is packed with the unknown dictionary {0:08x}")]
    #[diagnostic(help("upgrade this program: it may be older than the one that packed it"))]
    Dictionary(u32),
    /// The first line is not the expected comment.
    #[error("the batch does not begin with '# v=1 epoch=… seq=…'")]
    Header,
    /// A line is not line protocol as agents write it.
    #[error("line {line} of the batch: {problem}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
    },
}

/// Tags that are the same in all lines of a batch, and can be left out of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared<'a> {
    /// The tag `host`, which is in the topic.
    pub host: &'a str,
    /// The tag `hostname`, which is in the first line.
    pub hostname: &'a str,
}

impl Shared<'_> {
    fn has(&self, name: &str, value: &str) -> bool {
        match name {
            "host" => value == self.host,
            "hostname" => value == self.hostname,
            _ => false,
        }
    }
}

/// Encodes a batch as text. Points without fields are left out.
#[must_use]
pub fn encode(id: Numbered, points: &[Point]) -> String {
    write_batch(id, None, points)
}

/// Encodes a batch as text, without shared tags in its lines.
#[must_use]
pub fn encode_short(id: Numbered, shared: Shared<'_>, points: &[Point]) -> String {
    write_batch(id, Some(shared), points)
}

fn write_batch(id: Numbered, shared: Option<Shared<'_>>, points: &[Point]) -> String {
    let mut text = String::new();
    write_head(&mut text, id, shared);
    for point in points {
        write_values(&mut text, point, shared, |_, _| true);
    }
    text
}

fn write_head(text: &mut String, id: Numbered, shared: Option<Shared<'_>>) {
    // Writing to a String cannot fail.
    let _ = write!(text, "# v=1 epoch={} seq={}", id.epoch, id.seq);
    if let Some(shared) = shared.filter(|shared| !shared.hostname.is_empty()) {
        text.push_str(" hostname=");
        escape(text, shared.hostname, ",= ");
    }
    text.push('\n');
}

/// Writes a point as one line; nothing if it has no fields.
pub fn write_line(text: &mut String, point: &Point) {
    write_values(text, point, None, |_, _| true);
}

/// Writes those values of a point that `is_sent`, without the shared tags; nothing if there are none. Returns the length of the series'
/// name and tags.
fn write_values(
    text: &mut String,
    point: &Point,
    shared: Option<Shared<'_>>,
    mut is_sent: impl FnMut(&str, f64) -> bool,
) -> Option<usize> {
    let start = text.len();
    escape(text, &point.measurement, ", ");
    let is_left_out = |name: &str, value: &str| shared.is_some_and(|shared| shared.has(name, value));
    for (name, value) in point.tags.iter().filter(|(name, value)| !is_left_out(name, value)) {
        text.push(',');
        escape(text, name, ",= ");
        text.push('=');
        escape(text, value, ",= ");
    }
    let series_end = text.len();
    for (name, value) in point.fields.iter().filter(|(name, value)| is_sent(name, *value)) {
        text.push(if text.len() == series_end { ' ' } else { ',' });
        escape(text, name, ",= ");
        let _ = write!(text, "={value}");
    }
    if text.len() == series_end {
        text.truncate(start);
        return None;
    }
    let _ = writeln!(text, " {}", point.at_ms);
    Some(series_end - start)
}

/// A point as it stands in a batch, in a fifth of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointLine {
    text: Box<str>,
    /// The length of the series' name and tags.
    series_bytes: usize,
    at_ms: Millis,
}

impl PointLine {
    /// Writes those values of a point that `is_sent`, without the shared tags; `None` if there are none.
    #[must_use]
    pub fn new(point: &Point, shared: Option<Shared<'_>>, is_sent: impl FnMut(&str, f64) -> bool) -> Option<Self> {
        let mut text = String::new();
        let series_bytes = write_values(&mut text, point, shared, is_sent)?;
        Some(Self { text: text.into(), series_bytes, at_ms: point.at_ms })
    }

    /// The series' name and tags.
    #[must_use]
    pub fn series(&self) -> &str {
        self.text.get(..self.series_bytes).unwrap_or_default()
    }

    /// When it was measured.
    #[must_use]
    pub fn at_ms(&self) -> Millis {
        self.at_ms
    }
}

/// Encodes a batch of lines as text; their shared tags are those that they were written without.
#[must_use]
pub fn encode_lines(id: Numbered, shared: Option<Shared<'_>>, lines: &[PointLine]) -> String {
    let mut text = String::new();
    write_head(&mut text, id, shared);
    lines.iter().for_each(|line| text.push_str(&line.text));
    text
}

/// Parses a batch, compressed or not.
///
/// # Errors
/// If it is too large, or invalid. Nothing of an invalid batch is returned.
pub fn decode(bytes: &[u8]) -> Result<(Numbered, Vec<Point>), BatchError> {
    let text = unpack(bytes)?;
    let mut lines = text.lines().enumerate();
    let (id, shared) = lines.next().and_then(|(_, line)| header(line)).ok_or(BatchError::Header)?;
    let points = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| parse_line(line).map_err(|problem| BatchError::Line { line: index + 1, problem }))
        .map(|point| point.map(|point| with_shared(point, &shared)))
        .collect::<Result<_, _>>()?;
    Ok((id, points))
}

/// Adds shared tags to a line that lacks them.
fn with_shared(mut point: Point, shared: &[(String, String)]) -> Point {
    for (name, value) in shared {
        if let Err(index) = point.tags.binary_search_by(|(tag, _)| tag.cmp(name)) {
            point.tags.insert(index, (name.clone(), value.clone()));
        }
    }
    point
}

/// Returns the number of a batch from its first line alone.
#[must_use]
pub fn batch_id(bytes: &[u8]) -> Option<Numbered> {
    header(unpack(bytes).ok()?.lines().next()?).map(|(id, _)| id)
}

/// Parses the number of a batch, and the shared tags. Other words are for later versions.
fn header(line: &str) -> Option<(Numbered, Vec<(String, String)>)> {
    let mut words = split(line.strip_prefix("# v=1 ")?, ' ').into_iter();
    let epoch = words.next()?.strip_prefix("epoch=")?.parse().ok()?;
    let seq = words.next()?.strip_prefix("seq=")?.parse().ok()?;
    let mut room = SHARED_MAX_BYTES;
    let fits = |word: &&str| {
        let left = room.checked_sub(word.len());
        room = left.unwrap_or(room);
        left.is_some()
    };
    Some((Numbered { epoch, seq }, words.filter(fits).filter_map(pair).collect()))
}

/// Escapes a word. The format has no line breaks, so they become spaces; a backslash is literal unless one of `special`
/// follows it, so one at the end of a word becomes a slash.
fn escape(out: &mut String, word: &str, special: &str) {
    for c in word.chars() {
        match c {
            '\n' | '\r' => out.push_str(if special.contains(' ') { "\\ " } else { " " }),
            '\\' => out.push('/'),
            c => {
                if special.contains(c) {
                    out.push('\\');
                }
                out.push(c);
            }
        }
    }
}

fn parse_line(line: &str) -> Result<Point, &'static str> {
    let mut parts = split(line, ' ').into_iter();
    let (Some(key), Some(fields), Some(time), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err("expected measurement, fields and time, separated by spaces");
    };
    let mut key = split(key, ',').into_iter();
    let measurement = key.next().map(unescape).filter(|name| !name.is_empty()).ok_or("it has no measurement")?;
    let mut tags = key.map(|tag| pair(tag).ok_or("a tag is not name=value")).collect::<Result<Vec<_>, _>>()?;
    tags.sort();
    let fields = split(fields, ',').into_iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let at_ms = time.parse().map_err(|_| "its time is not a whole number")?;
    Ok(Point { measurement, tags, fields, at_ms })
}

fn field(text: &str) -> Result<(String, f64), &'static str> {
    let (name, value) = pair(text).ok_or("a field is not name=value")?;
    let value: f64 = value.parse().map_err(|_| "a field is not a number")?;
    if value.is_finite() { Ok((name, value)) } else { Err("a field is not finite") }
}

fn pair(text: &str) -> Option<(String, String)> {
    match split(text, '=')[..] {
        [name, value] if !name.is_empty() && !value.is_empty() => Some((unescape(name), unescape(value))),
        _ => None,
    }
}

/// Splits at each `separator` without a backslash before it.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, c) in text.char_indices() {
        if c == separator && !escaped {
            parts.push(&text[start..index]);
            start = index + c.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut chars = word.chars().peekable();
    while let Some(c) = chars.next() {
        let special = chars.peek().is_some_and(|next| ",= ".contains(*next));
        if c == '\\' && special {
            continue;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: Numbered = Numbered { epoch: 3, seq: 17 };

    #[test]
    fn a_batch_reads_as_line_protocol() {
        let points = [
            Point::new("muster_host_cpu", &[("host", "a b"), ("empty", "")], 1_000)
                .field("busy_ratio", 0.25)
                .field("nan", f64::NAN),
            Point::new("nothing", &[], 1_000).field("inf", f64::INFINITY),
            Point::new("muster_host_memory", &[], 2_000).field("used_bytes", 1e9),
        ];
        assert_eq!(
            encode(ID, &points),
            "# v=1 epoch=3 seq=17\n\
             muster_host_cpu,host=a\\ b busy_ratio=0.25 1000\n\
             muster_host_memory used_bytes=1000000000 2000\n"
        );
    }

    #[test]
    fn common_tags_are_written_once() {
        let shared = Shared { host: "h-1", hostname: "a b,c" };
        let tags = |unit| [("host", "h-1"), ("hostname", "a b,c"), ("unit", unit)];
        let own = Point::new("m", &tags("u"), 1).field("f", 1.0);
        let other = Point::new("m", &[("host", "h-2"), ("hostname", "d")], 2).field("f", 2.0);
        let text = encode_short(ID, shared, &[own, other.clone()]);
        assert_eq!(text, "# v=1 epoch=3 seq=17 hostname=a\\ b\\,c\nm,unit=u f=1 1\nm,host=h-2,hostname=d f=2 2\n");
        let (id, points) = decode(&pack(&text)).unwrap();
        let named = Point::new("m", &tags("u")[1..], 1).field("f", 1.0);
        assert_eq!((id, &points), (ID, &vec![named, other]), "the host is for the topic to say");
        assert_eq!(batch_id(text.as_bytes()), Some(ID));
        let nameless = encode_short(ID, Shared { hostname: "", ..shared }, &[]);
        assert_eq!(nameless, "# v=1 epoch=3 seq=17\n");
        let long = format!("# v=1 epoch=3 seq=17 x={} hostname=y\nm f=1 1\n", "x".repeat(SHARED_MAX_BYTES));
        assert_eq!(decode(long.as_bytes()).unwrap().1[0].tags, [("hostname".to_owned(), "y".to_owned())]);
        // Additions of a later agent are ignored.
        let (id, points) = decode(b"# v=1 epoch=3 seq=17 later z=1 y=\nm,a=b f=1 1\n").unwrap();
        assert_eq!((id, points), (ID, vec![Point::new("m", &[("a", "b"), ("z", "1")], 1).field("f", 1.0)]));
    }

    #[test]
    fn faulty_batches_are_refused() {
        for text in [
            "",
            "m f=1 1\n",
            "# v=2 epoch=1 seq=1\n",
            "# v=1 epoch=1\n",
            "# v=1 epoch=1 seq=1\nm\n",
            "# v=1 epoch=1 seq=1\nm f=1\n",
            "# v=1 epoch=1 seq=1\nm f=x 1\n",
            "# v=1 epoch=1 seq=1\nm f=NaN 1\n",
            "# v=1 epoch=1 seq=1\nm,t f=1 1\n",
            "# v=1 epoch=1 seq=1\nm f=1 1.5\n",
            "# v=1 epoch=1 seq=1\n f=1 1\n",
        ] {
            assert!(decode(text.as_bytes()).is_err(), "{text:?}");
            assert!(decode(&pack(text)).is_err(), "{text:?}");
        }
        let bomb = pack(&" ".repeat(100 * UNPACKED_MAX_BYTES));
        assert!(matches!(decode(&bomb), Err(BatchError::Unpack(_))));
        assert!(decode(&[0x1f, 0x8b, 0, 1, 2]).is_err());
    }

    fn word() -> impl Strategy<Value = String> {
        // Neither a backslash nor a line break: these are not preserved, by design.
        "[a-zé ,=\"#_-]{1,8}".prop_filter("a line that begins with # is a comment", |w| !w.starts_with('#'))
    }

    proptest! {
        #[test]
        fn encoded_batch_decodes_to_the_same(
            measurement in word(),
            tags in proptest::collection::btree_map(word(), word(), 0..3),
            value in proptest::num::f64::NORMAL,
            at_ms in any::<i64>(),
        ) {
            let tags: Vec<_> = tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let point = Point::new(&measurement, &tags, at_ms).field("value", value);
            let (id, points) = decode(&pack(&encode(ID, std::slice::from_ref(&point)))).unwrap();
            prop_assert_eq!((id, points), (ID, vec![point]));
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "[m, =\\\\1.\n#é]{0,60}") {
            let _ = decode(&bytes);
            let _ = decode(format!("# v=1 epoch=1 seq=1\n{text}").as_bytes());
            let hostile = Point::new(&text, &[(&text, &text)], 0).field(&text, 1.0);
            let _ = decode(encode(ID, &[hostile]).as_bytes());
        }
    }
}
