"""The law: any shares give what one device gives.

pytest tests/exactness                                the default, a covering subset
pytest tests/exactness -m long                        the rest of the full product
pytest tests/exactness/test_models.py -k cnn          one model
EVENER_TEST_CANDIDATE=plain pytest tests/exactness    plain Keras against itself
EVENER_TEST_CANDIDATE=mirrored pytest ...             MirroredStrategy, to see tests fail
EVENER_TEST_ERRORS=errors.txt pytest ...              notes the largest error of each test
cd tests; python -m exactness.rounding                what rounding alone does
"""
