//! Many rows in one statement. A statement costs some 20 µs on its way to the database and back, a row in a larger one
//! two or three.
//!
//! Statements exist for few numbers of rows, so that each is prepared once: a connection caches a hundred.
//!
//! Their parameters have no names. (`$1` is a name to SQLite, which compares it with the names of all parameters
//! before it: for two hundred that takes as long as everything else.)
//! A parameter behind them all may have its number as a name.

/// Numbers of rows for which statements are prepared; each is an eighth of the one before.
const SIZES: [usize; 4] = [512, 64, 8, 1];

/// Number of rows that may be buffered between the database's thread and the caller: as many as the largest statement
/// returns. With a smaller buffer both threads would wake each other every few rows.
pub const ROWS_AHEAD: usize = SIZES[0];

/// Splits items into chunks of a few fixed sizes.
pub fn pieces<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rest.len())?;
        let (piece, left) = rest.split_at(size);
        rest = left;
        Some(piece)
    })
}

/// The parameters of a number of rows: `(?, ?), (?, ?)`.
#[must_use]
pub fn parameters(rows: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_few_sizes_and_leave_nothing_out() {
        for count in [0, 1, 7, 8, 9, 63, 64, 511, 577, 1_500] {
            let items: Vec<usize> = (0..count).collect();
            assert!(pieces(&items).all(|piece| SIZES.contains(&piece.len())), "{count}");
            assert_eq!(pieces(&items).flatten().copied().collect::<Vec<_>>(), items);
        }
    }

    #[test]
    fn parameters_have_no_names() {
        assert_eq!(parameters(1, 1), "(?)");
        assert_eq!(parameters(2, 2), "(?, ?), (?, ?)");
        assert_eq!(parameters(0, 3), "");
    }
}
