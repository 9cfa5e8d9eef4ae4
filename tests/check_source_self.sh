#!/bin/sh
# Plants a violation of every source rule in a scratch tree and expects check_source.sh to name each of them.
exec "${srcdir:-.}/tests/check_source.sh" --self-test
