"""The table of /proc/vmstat in the seed of the process hints: a benchmark on Android that starts
applications and switches between them, without and with process_madvise.

Source: Minchan Kim, "[RFCv2 0/6] introduce memory hinting API for external process", 31 May 2019.
"""

SEED_VMSTAT = {
    "allocstall_dma": (0, 0),
    "allocstall_movable": (1_464, 457),
    "allocstall_normal": (263_210, 190_763),
    "allocstall_total": (264_674, 191_220),
    "compact_daemon_wake": (26_912, 25_294),
    "compact_fail": (17_885, 14_151),
    "compact_free_scanned": (4_204_766_409, 3_835_994_922),
    "compact_isolated": (3_446_484, 2_967_618),
    "compact_migrate_scanned": (1_621_336_411, 1_324_695_710),
    "compact_stall": (19_387, 15_343),
    "compact_success": (1_502, 1_192),
    "kswapd_high_wmark_hit_quickly": (234, 184),
    "kswapd_inodesteal": (221_635, 233_093),
    "kswapd_low_wmark_hit_quickly": (66_065, 54_009),
    "nr_dirtied": (259_934, 296_476),
    "nr_vmscan_immediate_reclaim": (2_587, 2_356),
    "nr_vmscan_write": (1_274_232, 2_661_733),
    "nr_written": (1_514_060, 2_937_560),
    "pageoutrun": (67_561, 55_133),
    "pgactivate": (2_335_060, 1_984_882),
    "pgalloc_dma": (13_743_011, 14_096_463),
    "pgalloc_movable": (0, 0),
    "pgalloc_normal": (18_742_440, 16_802_065),
    "pgalloc_total": (32_485_451, 30_898_528),
    "pgdeactivate": (4_262_210, 2_930_670),
    "pgfault": (30_812_334, 31_085_065),
    "pgfree": (33_553_970, 31_765_164),
    "pginodesteal": (33_411, 15_084),
    "pglazyfreed": (0, 0),
    "pgmajfault": (551_312, 1_508_299),
    "pgmigrate_fail": (43_927, 29_330),
    "pgmigrate_success": (1_399_851, 1_203_922),
    "pgpgin": (24_141_776, 19_032_156),
    "pgpgout": (959_344, 1_103_316),
    "pgpgoutclean": (4_639_732, 3_765_868),
    "pgrefill": (4_884_560, 3_006_938),
    "pgrotated": (37_828, 25_897),
    "pgscan_direct": (1_456_037, 957_567),
    "pgscan_direct_throttle": (0, 0),
    "pgscan_kswapd": (6_667_767, 5_047_360),
    "pgscan_total": (8_123_804, 6_004_927),
    "pgskip_dma": (0, 0),
    "pgskip_movable": (0, 0),
    "pgskip_normal": (14_907, 25_382),
    "pgskip_total": (14_907, 25_382),
    "pgsteal_direct": (1_118_986, 690_215),
    "pgsteal_kswapd": (4_750_223, 3_657_107),
    "pgsteal_total": (5_869_209, 4_347_322),
    "pswpin": (417_613, 1_392_647),
    "pswpout": (1_274_224, 2_661_731),
    "slabs_scanned": (13_686_905, 10_807_200),
    "workingset_activate": (668_966, 569_444),
    "workingset_nodereclaim": (38_957, 32_621),
    "workingset_refault": (2_816_795, 2_179_782),
    "workingset_restore": (294_320, 168_601),
}
"""For each counter: without hints, with them."""


def counter(name: str, vmstat: dict[str, int]) -> int | None:
    """The counter in this file. None: this kernel does not have it.

    A total is the sum over zones, or that of direct reclaim and kswapd. The seed's kernel counted
    workingset_* of files only.
    """
    if name in vmstat:
        return vmstat[name]
    stem = name.removesuffix("_total")
    if stem in ("pgscan", "pgsteal"):
        parts = [f"{stem}_direct", f"{stem}_kswapd"]
    elif stem != name:
        parts = [part for part in vmstat if part.startswith(f"{stem}_") and part != f"{stem}_device"]
    else:
        parts = [f"{name}_file"]
    found = [vmstat[part] for part in parts if part in vmstat]
    return sum(found) if found else None


def change(before: float, after: float) -> float | None:
    """Percent. None: it was zero before."""
    return 100 * (after / before - 1) if before else None
