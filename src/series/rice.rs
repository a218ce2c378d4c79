//! Golomb-Rice codes: columns of some hundred integers of similar size, in hardly more bits than they are worth. Pure.
//!
//! A number is divided by a power of two; the quotient is a run of zeros and a one, the rest takes as many bits as the power
//! says. `pco` comes closer to what numbers are worth, but takes fifty bytes to describe a column, which only pays for more of
//! them, and longer to decode it.
//!
//! What is coded are distances to the least number or to the median, whichever is shorter, without their common divisor.

use super::numbers::{self, DecodeError};

/// All numbers are equal.
const EQUAL: u8 = 0;
/// Distances to the least number.
const ABOVE: u8 = 1;
/// Distances to the median, of which every second code is negative.
const AROUND: u8 = 2;
/// A run of this many zeros is followed by a whole number.
const ESCAPE: u32 = 24;
/// The largest power: with the longest run and seven bits before, a code has at most 64 bits. A column's first byte has its
/// kind in the lowest bits, whether there is a divisor in the next, and the power above.
const POWER_MAX: u32 = 31;
const POWER_SHIFT: u32 = 3;
/// There is a common divisor.
const DIVISOR: u8 = 4;
/// Appends a column.
pub(crate) fn put(out: &mut Vec<u8>, values: &[i64]) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let (Some(least), Some(most)) = (sorted.first().copied(), sorted.last().copied()) else { return };
    if least == most {
        out.push(EQUAL);
        numbers::put_signed(out, least);
        return;
    }
    let divisor = match most.checked_sub(least) {
        Some(_) => values.iter().fold(0, |divisor, value| numbers::gcd(divisor, (value - least).unsigned_abs())),
        None => 1,
    };
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(least);
    let above = |value: &i64| value.wrapping_sub(least).cast_unsigned() / divisor;
    let around = |value: &i64| {
        let distance = i64::try_from(divisor).map_or(0, |divisor| value.wrapping_sub(median) / divisor);
        numbers::zigzag(distance)
    };
    let choices: [(u8, i64, Vec<u64>); 2] =
        [(ABOVE, least, values.iter().map(above).collect()), (AROUND, median, values.iter().map(around).collect())];
    let cheapest =
        choices.into_iter().map(|(kind, base, codes)| (power(&codes), kind, base, codes)).min_by_key(|one| one.0.0);
    let Some(((_, power), kind, base, codes)) = cheapest else { return };
    let has_divisor = if divisor == 1 { 0 } else { DIVISOR };
    out.push(kind | has_divisor | u8::try_from(power).unwrap_or_default() << POWER_SHIFT);
    numbers::put_signed(out, base);
    if divisor != 1 {
        numbers::put_varint(out, divisor);
    }
    let mut bits = BitWriter { out, pending: 0, count: 0 };
    codes.into_iter().for_each(|code| bits.put(code, power));
    bits.finish();
}

/// The number of bits with the best power, and that power.
fn power(codes: &[u64]) -> (u64, u32) {
    let cost = |power: u32| {
        let code = |code: &u64| match code >> power {
            run if run < u64::from(ESCAPE) => run + 1 + u64::from(power),
            _ => u64::from(ESCAPE) + 64,
        };
        codes.iter().map(code).sum::<u64>()
    };
    (0..=POWER_MAX).map(|power| (cost(power), power)).min().unwrap_or_default()
}

/// Appends a column after its length, so that others can be read beside it.
pub(crate) fn put_apart(out: &mut Vec<u8>, values: &[i64]) {
    let mut column = Vec::with_capacity(values.len());
    put(&mut column, values);
    numbers::put_varint(out, column.len() as u64);
    out.extend(column);
}

/// Decodes a column of this many numbers.
pub(crate) fn take(input: &mut &[u8], count: usize) -> Result<Vec<i64>, DecodeError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut column = ColumnReader::head(input)?;
    let values = (0..count).map(|_| column.next(input)).collect();
    *input = input.get(column.at.div_ceil(8)..).ok_or(ENDS)?;
    Ok(values)
}

/// Columns that are read side by side, which takes less time than one after the other: a processor need not
/// wait for the end of a code of one to begin with the next of another.
pub(crate) struct ColumnsReader<'a, const N: usize> {
    bytes: &'a [u8],
    columns: [ColumnReader; N],
}

impl<'a, const N: usize> ColumnsReader<'a, N> {
    /// Begins to read what [`put_apart`] wrote, to the end of the input.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut input = bytes;
        let mut columns = [ColumnReader::EMPTY; N];
        for column in &mut columns {
            let length = usize::try_from(numbers::take_varint(&mut input)?).unwrap_or(usize::MAX);
            let (mut own, behind) = input.split_at_checked(length).ok_or(ENDS)?;
            if !own.is_empty() {
                *column = ColumnReader::head(&mut own)?;
            }
            column.at = (bytes.len() - behind.len() - own.len()) * 8;
            column.end = column.at.div_ceil(8) + own.len();
            input = behind;
        }
        Ok(Self { bytes, columns })
    }

    /// The next number of each column; any numbers behind the last ones.
    #[inline]
    pub(crate) fn next(&mut self) -> [i64; N] {
        let mut row = [0; N];
        for (value, column) in row.iter_mut().zip(&mut self.columns) {
            *value = column.next(self.bytes);
        }
        row
    }

    /// Whether each column ends here.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.columns.iter().all(|column| column.at.div_ceil(8) == column.end) { Ok(()) } else { Err(ENDS) }
    }
}

/// How a column is coded, and what was read of it.
struct ColumnReader {
    kind: u8,
    power: u32,
    base: i64,
    divisor: i64,
    /// The place of the next code, in bits from the beginning of the input.
    at: usize,
    /// Where the column ends, in bytes.
    end: usize,
}

impl ColumnReader {
    const EMPTY: Self = Self { kind: EQUAL, power: 0, base: 0, divisor: 1, at: 0, end: 0 };

    /// Reads what is before the codes.
    fn head(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let head = numbers::take_byte(input)?;
        let (kind, base) = (head & (DIVISOR - 1), numbers::take_signed(input)?);
        if kind == EQUAL {
            return Ok(Self { base, ..Self::EMPTY });
        }
        let divisor = if head & DIVISOR == 0 { 1 } else { numbers::take_varint(input)? };
        let power = u32::from(head >> POWER_SHIFT);
        let column = Self { kind, power, base, divisor: divisor.cast_signed(), ..Self::EMPTY };
        if matches!(kind, ABOVE | AROUND) { Ok(column) } else { Err(UNKNOWN) }
    }

    #[inline]
    fn next(&mut self, bytes: &[u8]) -> i64 {
        if self.kind == EQUAL {
            return self.base;
        }
        // At least 57 bits, as many as the longest code with a run has.
        let next = bits(bytes, self.at);
        let run = next.trailing_zeros();
        let code = if run < ESCAPE {
            self.at += (run + 1 + self.power) as usize;
            u64::from(run) << self.power | next >> (run + 1) & ((1 << self.power) - 1)
        } else {
            self.at += (ESCAPE + 64) as usize;
            whole(bytes, self.at - 64)
        };
        // As `unzigzag` where codes have a sign, without a branch.
        let signed = u64::from(self.kind == AROUND);
        let distance = (code >> signed).cast_signed() ^ -(code & signed).cast_signed();
        self.base.wrapping_add(distance.wrapping_mul(self.divisor))
    }
}

/// The bits from a place on; behind the last there are zeros.
#[inline]
fn bits(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at / 8..).and_then(|rest| rest.first_chunk::<8>());
    word.map_or_else(|| last_bits(bytes, at), |word| u64::from_le_bytes(*word)) >> (at % 8)
}

#[cold]
fn last_bits(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes.get(at / 8..).unwrap_or_default()).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// A whole number.
#[cold]
fn whole(bytes: &[u8], at: usize) -> u64 {
    let half = |at| bits(bytes, at) & u64::from(u32::MAX);
    half(at + 32) << 32 | half(at)
}

const ENDS: DecodeError = DecodeError::Content("a column that ends elsewhere");
const UNKNOWN: DecodeError = DecodeError::Content("a coded column of no known kind");

/// Writes bits, the lowest first.
struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    count: u32,
}

impl BitWriter<'_> {
    fn put(&mut self, code: u64, power: u32) {
        let run = code >> power;
        if run < u64::from(ESCAPE) {
            self.bits(1 << run, u32::try_from(run).unwrap_or(0) + 1);
            self.bits(code & ((1 << power) - 1), power);
        } else {
            self.bits(0, ESCAPE);
            self.bits(code & u64::from(u32::MAX), 32);
            self.bits(code >> 32, 32);
        }
    }

    /// Writes at most 32 bits.
    fn bits(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.count;
        self.count += count;
        while self.count >= 8 {
            #[expect(clippy::cast_possible_truncation, reason = "its low eight bits are meant")]
            self.out.push(self.pending as u8);
            self.pending >>= 8;
            self.count -= 8;
        }
    }

    fn finish(mut self) {
        if self.count > 0 {
            self.bits(0, 8 - self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a column beside another.
    fn beside(values: &[i64]) {
        let other: Vec<i64> = values.iter().map(|value| value.wrapping_mul(31) % 97).collect();
        let mut bytes = Vec::new();
        put_apart(&mut bytes, values);
        put_apart(&mut bytes, &other);
        let mut columns = ColumnsReader::<2>::new(&bytes).unwrap();
        for (value, other) in values.iter().zip(&other) {
            assert_eq!(columns.next(), [*value, *other]);
        }
        assert_eq!(columns.finish(), Ok(()));
        if columns.columns[0].kind != EQUAL {
            (0..64).for_each(|_| _ = columns.next());
            assert_eq!(columns.finish(), Err(ENDS), "more was read than there is");
        }
        for cut in 0..bytes.len() {
            let faulty = ColumnsReader::<2>::new(&bytes[..cut]).and_then(|mut columns| {
                values.iter().for_each(|_| _ = columns.next());
                columns.finish()
            });
            assert!(faulty.is_err(), "{cut} of {}", bytes.len());
        }
    }

    fn packed(values: &[i64]) -> usize {
        beside(values);
        let mut bytes = Vec::new();
        put(&mut bytes, values);
        let length = bytes.len();
        // What follows is left.
        bytes.extend([0xff; 9]);
        let mut rest = &bytes[..];
        assert_eq!(take(&mut rest, values.len()).unwrap(), values);
        assert_eq!(rest, [0xff; 9]);
        bytes.truncate(length);
        for cut in 0..length {
            assert!(take(&mut &bytes[..cut], values.len()).is_err(), "{cut} of {length}");
        }
        length
    }

    #[test]
    fn usual_columns_are_small() {
        let column = |value: fn(i64) -> i64| (0..288).map(value).collect::<Vec<_>>();
        for (what, values, bytes_max) in [
            ("equal", column(|_| -7), 2),
            ("zeros and a few", column(|i| i64::from(i % 50 == 0)), 45),
            ("a byte each", column(|i| i * i * 7_919 % 251), 330),
            ("around a million", column(|i| 1_000_000 + i * i * 7_919 % 251 - 128), 330),
            ("multiples", column(|i| (i * i * 7_919 % 251) * 4_096), 330),
            ("one far away", column(|i| if i == 3 { i64::MAX } else { i % 3 }), 140),
        ] {
            let bytes = packed(&values);
            assert!(bytes <= bytes_max, "{what}: {bytes}");
        }
    }

    #[test]
    fn extremes_come_back() {
        for values in [
            vec![i64::MIN, i64::MAX],
            vec![i64::MIN, 0, i64::MAX, -1, 1],
            vec![0, i64::MAX],
            vec![i64::MIN; 3],
            [1 << 40, 0, 1].repeat(30),
        ] {
            packed(&values);
        }
    }

    proptest! {
        #[test]
        fn columns_come_back(
            values in proptest::collection::vec(any::<i64>(), 1..50),
            small in proptest::collection::vec(-999..999_i64, 1..400),
            factor in 1..1_000_000_i64,
        ) {
            packed(&values);
            packed(&small);
            packed(&small.iter().map(|value| value * factor).collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..100), count in 0..400_usize) {
            let _ = take(&mut &bytes[..], count);
            if let Ok(mut columns) = ColumnsReader::<3>::new(&bytes) {
                (0..count).for_each(|_| _ = columns.next());
                let _ = columns.finish();
            }
        }
    }
}
