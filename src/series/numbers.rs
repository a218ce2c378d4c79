//! Compact encoding of columns of numbers, lossless to the bit. Pure.
//!
//! Most metrics are whole numbers or have few decimals; such a column is stored as its first number and the
//! distances to it, without their common divisor (memory comes in pages, and a counter of packets has some first
//! value), and packed by `pco`. A constant column is one number. Everything else is given to `pco` as it is.

use pco::{
    ChunkConfig, ModeSpec, PagingSpec,
    standalone::{simple_compress, simple_decompress_into},
    wrapped::{ChunkDecompressor, FileCompressor, FileDecompressor},
};

/// Columns that are shorter than this are not worth `pco`'s header of about twenty bytes.
const PACKED_MIN: usize = 16;
/// `pco`'s level: above 4, columns of an hour hardly get smaller and take longer.
const LEVEL: usize = 4;
/// The level for columns of a day, where what is found out about a column is shared by many more numbers.
const PAGED_LEVEL: usize = 6;
/// Up to 2^53 all integers are exact in a float.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
/// The scales that are tried.
const SCALES: [f64; 5] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0];

/// The encodings of columns.
const PLAIN: u8 = 0;
const CONSTANT: u8 = 1;
const FLOATS: u8 = 2;
/// From this value on: the first integer and the distances to it, with the scale of this index.
const DISTANCES: u8 = 3;

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// They are not what was written.
    #[error("its checksum is wrong")]
    Checksum,
    /// The checksum is right, but this program does not write such content.
    #[error("its content is not valid: {0}")]
    Content(&'static str),
}

/// Appends an encoded column.
pub(crate) fn put(out: &mut Vec<u8>, values: &[f64]) {
    let Some(first) = values.first() else { return };
    if values.iter().all(|value| value.to_bits() == first.to_bits()) {
        out.push(CONSTANT);
        out.extend(first.to_le_bytes());
    } else if let Some((scale, whole)) = wholes(values) {
        out.push(DISTANCES + scale);
        let distances = put_distances(out, &whole);
        put_wholes(out, &distances);
    } else if let Some(packed) = (values.len() >= PACKED_MIN).then(|| pack(values, ModeSpec::Auto)).flatten() {
        out.push(FLOATS);
        put_bytes(out, &packed);
    } else {
        out.push(PLAIN);
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

/// Decodes a column of this many numbers, and leaves the rest of the input.
pub(crate) fn take(input: &mut &[u8], count: usize) -> Result<Vec<f64>, DecodeError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    match take_byte(input)? {
        PLAIN => (0..count).map(|_| take_float(input)).collect(),
        CONSTANT => Ok(vec![take_float(input)?; count]),
        FLOATS => unpack(take_bytes(input)?, count),
        kind => {
            let (base, scale) = (take_signed(input)?, scale(kind.wrapping_sub(DISTANCES))?);
            let wholes = take_wholes(input, count)?.into_iter();
            Ok(wholes.map(|whole| from_whole(base.wrapping_add(whole), scale)).collect())
        }
    }
}

/// Appends the first of some integers, and returns the distances of all to it.
fn put_distances(out: &mut Vec<u8>, values: &[i64]) -> Vec<i64> {
    let first = values.first().copied().unwrap_or_default();
    put_signed(out, first);
    values.iter().map(|value| value.wrapping_sub(first)).collect()
}

/// Appends encoded integers.
pub(crate) fn put_wholes(out: &mut Vec<u8>, values: &[i64]) {
    let (divisor, reduced) = reduced(values);
    put_varint(out, divisor.unsigned_abs());
    let packed = if values.len() < PACKED_MIN { None } else { pack(&reduced, ModeSpec::Classic) };
    match packed {
        Some(packed) => put_bytes(out, &packed),
        None => {
            put_varint(out, 0);
            let mut last = 0_i64;
            for value in reduced {
                put_signed(out, value.wrapping_sub(last));
                last = value;
            }
        }
    }
}

/// Decodes this many integers.
pub(crate) fn take_wholes(input: &mut &[u8], count: usize) -> Result<Vec<i64>, DecodeError> {
    let divisor = take_divisor(input)?;
    let packed = take_bytes(input)?;
    let mut values = if packed.is_empty() {
        let mut last = 0_i64;
        let mut next = || {
            last = last.wrapping_add(take_signed(input)?);
            Ok(last)
        };
        (0..count).map(|_| next()).collect::<Result<Vec<_>, _>>()?
    } else {
        unpack(packed, count)?
    };
    if divisor != 1 {
        values.iter_mut().for_each(|value| *value = value.wrapping_mul(divisor));
    }
    Ok(values)
}

/// A column in pages, of which each can be decoded alone: what they share stands in a header.
pub(crate) enum PagedColumn {
    Constant(f64),
    Wholes(f64, PagedWholes),
    Floats(ChunkDecompressor<f64>),
}

impl PagedColumn {
    /// Appends to a header what pages share, and to each page its part of the column. `None` if it cannot be packed.
    pub(crate) fn put(header: &mut Vec<u8>, pages: &mut [Vec<u8>], values: &[f64], counts: &[usize]) -> Option<()> {
        let first = values.first().copied().unwrap_or_default();
        if values.iter().all(|value| value.to_bits() == first.to_bits()) {
            header.push(CONSTANT);
            header.extend(first.to_le_bytes());
            Some(())
        } else if let Some((scale, whole)) = wholes(values) {
            header.push(DISTANCES + scale);
            PagedWholes::put(header, pages, &whole, counts)
        } else {
            header.push(FLOATS);
            put_pages(header, pages, values, counts, ModeSpec::Auto)
        }
    }

    /// Decodes the header.
    pub(crate) fn take(header: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(match take_byte(header)? {
            CONSTANT => Self::Constant(take_float(header)?),
            FLOATS => Self::Floats(take_pages(header)?),
            kind => {
                let scale = kind.checked_sub(DISTANCES).and_then(|index| SCALES.get(usize::from(index)));
                Self::Wholes(*scale.ok_or(UNKNOWN)?, PagedWholes::take(header)?)
            }
        })
    }

    /// Decodes the next part of a page, of this many numbers, into `values`.
    pub(crate) fn page(
        &mut self,
        page: &mut PageInput<'_>,
        count: usize,
        values: &mut Vec<f64>,
    ) -> Result<(), DecodeError> {
        values.clear();
        match self {
            Self::Constant(value) => values.resize(count, *value),
            Self::Wholes(scale, wholes) => {
                let scale = *scale;
                values.extend(wholes.page(page, count)?.map(|whole| from_whole(whole, scale)));
            }
            Self::Floats(chunk) => take_page(chunk, page, count, values)?,
        }
        Ok(())
    }
}

/// Times in pages, as [`PagedColumn`]; those with equal distances are not in the pages.
pub(crate) enum PagedTimes {
    Regular { first: i64, step: i64 },
    Irregular(Box<PagedWholes>),
}

impl PagedTimes {
    /// As [`PagedColumn::put`].
    pub(crate) fn put(header: &mut Vec<u8>, pages: &mut [Vec<u8>], times: &[i64], counts: &[usize]) -> Option<()> {
        let first = times.first().copied().unwrap_or_default();
        let step = times.get(1).map_or(0, |second| second - first);
        let regular = times.is_sorted_by(|one, next| next - one == step);
        header.push(u8::from(!regular));
        if !regular {
            return PagedWholes::put(header, pages, times, counts);
        }
        put_signed(header, first);
        put_signed(header, step);
        Some(())
    }

    /// As [`PagedColumn::take`].
    pub(crate) fn take(header: &mut &[u8]) -> Result<Self, DecodeError> {
        match take_byte(header)? {
            0 => Ok(Self::Regular { first: take_signed(header)?, step: take_signed(header)? }),
            1 => Ok(Self::Irregular(Box::new(PagedWholes::take(header)?))),
            _ => Err(DecodeError::Content("times of no known kind")),
        }
    }

    /// As [`PagedColumn::page`]; `index` is that of the page's first time in the column.
    pub(crate) fn page(
        &mut self,
        page: &mut PageInput<'_>,
        index: usize,
        count: usize,
        times: &mut Vec<i64>,
    ) -> Result<(), DecodeError> {
        times.clear();
        match self {
            Self::Regular { first, step } => {
                let time = |index: usize| first.wrapping_add(step.wrapping_mul(index.cast_signed() as i64));
                times.extend((index..index + count).map(time));
            }
            Self::Irregular(wholes) => times.extend(wholes.page(page, count)?),
        }
        Ok(())
    }
}

/// Integers in pages: the distances to the first one, without their common divisor.
pub(crate) struct PagedWholes {
    first: i64,
    divisor: i64,
    chunk: ChunkDecompressor<i64>,
    /// What was last decoded: its memory is used again.
    distances: Vec<i64>,
}

impl PagedWholes {
    fn put(header: &mut Vec<u8>, pages: &mut [Vec<u8>], values: &[i64], counts: &[usize]) -> Option<()> {
        let distances = put_distances(header, values);
        let (divisor, reduced) = reduced(&distances);
        put_varint(header, divisor.unsigned_abs());
        put_pages(header, pages, &reduced, counts, ModeSpec::Classic)
    }

    fn take(header: &mut &[u8]) -> Result<Self, DecodeError> {
        let first = take_signed(header)?;
        Ok(Self { first, divisor: take_divisor(header)?, chunk: take_pages(header)?, distances: Vec::new() })
    }

    fn page(
        &mut self,
        page: &mut PageInput<'_>,
        count: usize,
    ) -> Result<impl Iterator<Item = i64> + use<'_>, DecodeError> {
        take_page(&mut self.chunk, page, count, &mut self.distances)?;
        let (first, divisor) = (self.first, self.divisor);
        Ok(self.distances.iter().map(move |distance| first.wrapping_add(distance.wrapping_mul(divisor))))
    }
}

/// Number of bytes that have to follow the last page, with any content. `pco` reads ahead by up to a batch of its
/// largest numbers; where there is less, it copies the rest of the page to new memory of twice that size, which takes
/// longer than decoding an hour.
pub(crate) const PAGE_PADDING: usize = 256 * (16 + 2) + 64;

/// The largest column that is copied to memory with such padding.
const PADDED_MAX: usize = 4 * 1024;

/// What is left of a page.
pub(crate) struct PageInput<'a> {
    /// Its bytes, and those that follow.
    bytes: &'a [u8],
    /// The number of its bytes.
    length: usize,
}

impl<'a> PageInput<'a> {
    /// A page at the beginning of these bytes, of which at least [`PAGE_PADDING`] should follow it.
    pub(crate) fn new(bytes: &'a [u8], length: usize) -> Self {
        Self { bytes, length }
    }
}

fn put_pages<T: Packed>(
    header: &mut Vec<u8>,
    pages: &mut [Vec<u8>],
    values: &[T],
    counts: &[usize],
    mode: ModeSpec,
) -> Option<()> {
    let config = ChunkConfig::default().with_compression_level(PAGED_LEVEL).with_mode_spec(mode);
    let config = config.with_paging_spec(PagingSpec::Exact(counts.to_vec()));
    let file = FileCompressor::default();
    let mut chunk = file.chunk_compressor(values, &config).ok()?;
    let mut shared = Vec::new();
    file.write_header(&mut shared).and_then(|shared| chunk.write_meta(shared)).ok()?;
    put_bytes(header, &shared);
    for (index, page) in pages.iter_mut().enumerate() {
        chunk.write_page(index, page).ok()?;
    }
    Some(())
}

fn take_pages<T: Packed>(header: &mut &[u8]) -> Result<ChunkDecompressor<T>, DecodeError> {
    let shared = take_bytes(header)?;
    let chunk = FileDecompressor::new(shared).and_then(|(file, shared)| file.chunk_decompressor(shared));
    chunk.map(|(chunk, _)| chunk).map_err(|_| PACKED)
}

fn take_page<T: Packed>(
    chunk: &mut ChunkDecompressor<T>,
    page: &mut PageInput<'_>,
    count: usize,
    values: &mut Vec<T>,
) -> Result<(), DecodeError> {
    values.clear();
    values.resize(count, T::default());
    let mut reader = chunk.page_decompressor(page.bytes, count).map_err(|_| PACKED)?;
    let progress = reader.read(values).map_err(|_| PACKED)?;
    let rest = reader.into_src();
    // What follows the page is not its content.
    page.length = page.length.checked_sub(page.bytes.len() - rest.len()).ok_or(ENDS)?;
    page.bytes = rest;
    if progress.n_processed == count { Ok(()) } else { Err(SHORT) }
}

/// The column as integers with a scale, given by its index; `None` if a number has too many decimals.
pub(crate) fn wholes(values: &[f64]) -> Option<(u8, Vec<i64>)> {
    for (index, scale) in (0_u8..).zip(SCALES) {
        let whole: Option<Vec<i64>> = values.iter().map(|value| to_whole(*value, scale)).collect();
        if let Some(whole) = whole {
            return Some((index, whole));
        }
    }
    None
}

/// The scale of this index.
pub(crate) fn scale(index: u8) -> Result<f64, DecodeError> {
    SCALES.get(usize::from(index)).copied().ok_or(UNKNOWN)
}

fn to_whole(value: f64, scale: f64) -> Option<i64> {
    let scaled = (value * scale).round();
    if scaled.abs() >= WHOLE_MAX {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small enough")]
    let whole = scaled as i64;
    (from_whole(whole, scale).to_bits() == value.to_bits()).then_some(whole)
}

#[expect(clippy::cast_precision_loss, reason = "what `to_whole` gives is exact")]
pub(crate) fn from_whole(whole: i64, scale: f64) -> f64 {
    whole as f64 / scale
}

/// The common divisor of integers, and they without it.
fn reduced(values: &[i64]) -> (i64, Vec<i64>) {
    let divisor = values.iter().fold(0, |divisor, value| gcd(divisor, value.unsigned_abs())).max(1);
    let divisor = i64::try_from(divisor).unwrap_or(1);
    (divisor, values.iter().map(|value| value / divisor).collect())
}

fn take_divisor(input: &mut &[u8]) -> Result<i64, DecodeError> {
    i64::try_from(take_varint(input)?).map_err(|_| DecodeError::Content("a divisor"))
}

pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A type of number that `pco` compresses.
trait Packed: pco::data_types::Number {}
impl Packed for f64 {}
impl Packed for i64 {}

fn pack<T: Packed>(values: &[T], mode: ModeSpec) -> Option<Vec<u8>> {
    let config = ChunkConfig::default().with_compression_level(LEVEL).with_mode_spec(mode);
    simple_compress(values, &config).ok()
}

fn unpack<T: Packed>(bytes: &[u8], count: usize) -> Result<Vec<T>, DecodeError> {
    let mut values = vec![T::default(); count];
    // See `PAGE_PADDING`.
    let mut padded = [0; PADDED_MAX + PAGE_PADDING];
    let bytes = if bytes.len() <= PADDED_MAX {
        padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        &padded
    } else {
        bytes
    };
    let progress = simple_decompress_into(bytes, &mut values).map_err(|_| PACKED)?;
    if progress.n_processed == count { Ok(values) } else { Err(SHORT) }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "its low seven bits are meant")]
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is less than 128")]
    out.push(value as u8);
}

pub(crate) fn take_varint(input: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = take_byte(input)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Content("a number without an end"))
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, zigzag(value));
}

pub(crate) fn take_signed(input: &mut &[u8]) -> Result<i64, DecodeError> {
    Ok(unzigzag(take_varint(input)?))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn take_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(take_varint(input)?).unwrap_or(usize::MAX);
    let (bytes, rest) = input.split_at_checked(length).ok_or(ENDS)?;
    *input = rest;
    Ok(bytes)
}

const ENDS: DecodeError = DecodeError::Content("it ends early");
const PACKED: DecodeError = DecodeError::Content("a packed column");
const SHORT: DecodeError = DecodeError::Content("a column that is too short");
const UNKNOWN: DecodeError = DecodeError::Content("a column of no known kind");

pub(crate) fn take_byte(input: &mut &[u8]) -> Result<u8, DecodeError> {
    let (byte, rest) = input.split_first().ok_or(ENDS)?;
    *input = rest;
    Ok(*byte)
}

pub(crate) fn take_float(input: &mut &[u8]) -> Result<f64, DecodeError> {
    let (bytes, rest) = input.split_first_chunk::<8>().ok_or(ENDS)?;
    *input = rest;
    Ok(f64::from_le_bytes(*bytes))
}

pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// The checksum of a body. It includes the key, so that data under a wrong key is detected.
pub(crate) fn checksum(body: &[u8], key: i64) -> u32 {
    crc32fast::hash(body) ^ crc32fast::hash(&key.to_le_bytes())
}

/// The body after its checksum, which is verified.
pub(crate) fn checked(bytes: &[u8], key: i64) -> Result<&[u8], DecodeError> {
    let (found, body) = bytes.split_first_chunk::<4>().ok_or(DecodeError::Checksum)?;
    if u32::from_le_bytes(*found) == checksum(body, key) { Ok(body) } else { Err(DecodeError::Checksum) }
}

/// A body after its checksum.
pub(crate) fn sealed(body: &[u8], key: i64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend(checksum(body, key).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(values: &[f64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, values);
        let mut rest = &bytes[..];
        let read = take(&mut rest, values.len()).unwrap();
        assert_eq!(rest, b"");
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(values));
        bytes
    }

    #[test]
    fn usual_columns_are_small() {
        let hour = |value: fn(u32) -> f64| (0..360).map(value).collect::<Vec<_>>();
        assert_eq!(packed(&hour(|_| 0.1)).len(), 9);
        for (what, values, bytes_max) in [
            ("a counter", hour(|i| 1e9 + f64::from(i) * 10.0), 60),
            ("memory in pages", hour(|i| 4096.0 * f64::from(100_000 + i * 7919 % 64)), 340),
            ("percents", hour(|i| f64::from(i * 7919 % 100) / 100.0), 400),
        ] {
            let bytes = packed(&values).len();
            assert!(bytes <= bytes_max, "{what}: {bytes}");
        }
    }

    #[test]
    fn extremes_come_back() {
        for values in [
            vec![0.0, -0.0],
            vec![f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324],
            vec![f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
            vec![9_007_199_254_740_991.0, -9_007_199_254_740_991.0],
            [0.1 + 0.2, 1e300].repeat(40),
            [-0.0, 0.0].repeat(40),
        ] {
            packed(&values);
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(
            values in proptest::collection::vec(any::<f64>(), 1..100),
            whole in proptest::collection::vec(any::<i32>(), 1..100),
            wholes in proptest::collection::vec(any::<i64>(), 1..100),
            scale in 0..6_usize,
        ) {
            packed(&values);
            packed(&whole.into_iter().map(|value| f64::from(value) / 10_f64.powi(scale as i32)).collect::<Vec<_>>());
            let mut bytes = Vec::new();
            put_wholes(&mut bytes, &wholes);
            prop_assert_eq!(take_wholes(&mut &bytes[..], wholes.len()), Ok(wholes));
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..100), count in 0..1_000_usize) {
            let _ = take(&mut &bytes[..], count);
            let _ = take_wholes(&mut &bytes[..], count);
            let _ = checked(&bytes, 7);
        }
    }
}
