//! Panics, which are errors in these sources, end at the border to Python.
//!
//! PyO3 would raise a `PanicException`. That is no `Exception`: what keeps a failed request or a failed part from ending
//! the broker does not catch it. So a kernel that panics is one in doubt, and the Python version decides.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// The result of `work`, or `doubt` if it panics. What it has half written must not count then.
pub fn or_doubt<T>(doubt: impl FnOnce() -> T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| doubt())
}

#[cfg(test)]
mod tests {
    use super::or_doubt;

    #[test]
    fn a_panic_is_a_doubt() {
        let data = [1, 2, 3];
        let at = |place: usize| or_doubt(|| None, || Some(data[place]));
        assert_eq!((at(2), at(3)), (Some(3), None));
    }

    #[test]
    fn what_was_done_before_a_panic_is_known() {
        let mut done = 0;
        or_doubt(
            || (),
            || {
                for number in 0..5 {
                    assert!(number < 3, "on purpose");
                    done += 1;
                }
            },
        );
        assert_eq!(done, 3);
    }
}
